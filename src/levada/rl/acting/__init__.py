"""Acting in environments without gradients: actors, samplers, exploration, evaluation."""
