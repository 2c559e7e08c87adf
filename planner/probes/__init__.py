"""Measure this machine: kernels as training calls them, and short training steps. PyTorch lives here."""
