"""The process of the evaluations."""
