"""Evaluators of a flow: which evaluations are due, and where they are made."""
