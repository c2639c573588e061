"""What of the archive a generated token attends to: a policy a file; `selection` and `sparse` are what they share."""
