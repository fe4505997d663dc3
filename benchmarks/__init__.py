"""Measurements: ratios from one run on one machine. `python -m benchmarks`; see README.md beside this."""
