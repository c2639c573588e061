"""What of the archive a generated token attends to: a policy a file, and in `selection` and `sparse` what they share."""
