"""A decode step without the host: lengths, positions and tokens live on the device, so that a CUDA graph can hold it.

The same code runs eagerly on every device; `kvz.decode.engine` is the way of every other one.
"""
