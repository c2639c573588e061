"""Defaults that the command line shows and the Python API shares; imported without torch."""

RATIO = 0.3
"""Share of a document's pairs that is kept."""

MAX_NEW_TOKENS = 256
"""Longest answer, in tokens."""

METHOD = "kvzip-rms"
"""Scoring method."""
