"""kvz bench: its methods, plans, cells, folders and the command."""
