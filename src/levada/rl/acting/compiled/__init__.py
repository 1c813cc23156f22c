"""Rollouts of functional environments in one compiled call: the policy's network, its noise and the environments together."""
