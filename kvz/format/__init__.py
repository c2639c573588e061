"""The archive on disk, as docs/format.md specifies it. Only this room knows file bytes."""
