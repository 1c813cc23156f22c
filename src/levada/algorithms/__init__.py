"""Algorithms: each a configuration and the flow that follows from it; `levada.algorithms.registry` finds them by name."""
