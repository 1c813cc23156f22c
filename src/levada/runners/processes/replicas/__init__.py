"""Learners in child processes of the run."""
