"""What of the archive a generated token attends to; one policy a file."""
