"""Frames: the state of a run a few times per second, which the run writes, and other processes read while it goes on."""
