"""Attention over parts of a cache, in plain torch; one operation a file.

Every attention here also returns the log-sum-exp of its rows, so that attention over several parts (prefix, archive,
tail) can be merged exactly afterwards.
"""
