"""Displays of a run while it runs."""
