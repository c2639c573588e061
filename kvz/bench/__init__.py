"""Benchmarks: `kvz bench`, which compares methods on tasks, and what `scripts/bench` measures of the parts."""
