"""What is asked: tasks made here, and tasks read from files. A new task is one file plus one line in the registry."""
