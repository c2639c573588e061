"""What is computed over pairs: attention, scores and selections. An operation a file, in plain torch.

Where there is a faster form for CPUs it lies in `cpu`, for NVIDIA GPUs in `triton`. Attention over a part of a cache
(prefix, archive, tail) also returns the log-sum-exp of its rows, so that parts can be merged exactly afterwards.
"""
