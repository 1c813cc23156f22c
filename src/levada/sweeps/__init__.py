"""Searches for settings: spaces, samplers, records of trials, and the metric by which trials are compared.

A trial is a choice of settings, with a run for each seed. `levada sweep` starts the runs; here is what it decides.
"""
