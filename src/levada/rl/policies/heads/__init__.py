"""Action heads: sampling, log-probabilities and modes of actions from network outputs, per action space."""
