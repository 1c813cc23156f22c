"""Algorithms: each is a configuration that builds a flow. `levada.algorithms.registry` finds them by name."""
