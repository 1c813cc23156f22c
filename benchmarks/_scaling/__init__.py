"""Flows whose parts take a known time."""
