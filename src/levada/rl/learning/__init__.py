"""Learners: gradient steps on batches, optimizers, unrolled recurrent networks, gradients computed by samplers."""
