"""The command line. Only this room prints: answers to stdout, everything else to stderr."""
