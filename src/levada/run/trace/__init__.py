"""The trace of a run: every firing, and what was made of what, for Perfetto."""
