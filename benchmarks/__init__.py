"""How much processor time answers take, as multiples of a fixed NumPy workload: ``python -m benchmarks``."""
