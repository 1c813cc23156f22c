"""A run in a separate process, including the learner: the handle in the main process, the server, their connection."""
