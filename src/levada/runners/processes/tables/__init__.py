"""Replay tables in separate processes, which copy rows directly from where the samplers made them."""
