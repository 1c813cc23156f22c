"""Infrastructure of a run: stopping conditions, directory, checkpoints, metrics, display and summary; `loop` joins them."""
