"""Policies: the recipe, its PyTorch module, networks, critics, distributions of action values."""
