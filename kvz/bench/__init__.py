"""Benchmarks: what kvz saves, measured against transformers in one process."""
