"""Kernels for CPUs that numba compiles when they are first used; beside each is its plain torch form in `kvz.kernels`.

They are for the few query rows of a decode step, which torch's own kernels are not made for. The machine code stays in
numba's cache on disk: the first use on a machine takes some seconds, every other one a fraction of a second.
"""
