"""Computation with PyTorch apart from what is learned: devices, threads, seeds, tracing, matrix products."""
