"""Run directories: files, checkpoints, saved state, trust."""
