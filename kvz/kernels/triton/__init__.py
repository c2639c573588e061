"""Triton kernels for NVIDIA GPUs; beside each is its plain torch form in `kvz.kernels`, which says what it computes."""
