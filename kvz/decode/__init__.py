"""Question time: an archive's cache, a tail for new tokens, and the loop that turns a question into an answer."""
