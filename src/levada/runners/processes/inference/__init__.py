"""Inference elsewhere: samplers ask, one server answers for all of them, in a process or in a thread.

What a shard has served (`Shard.serve`) is made by the server, once for each version of the weights that is in use. A call's
arrays, and those of its answer, are in shared memory; what is sent says where. Where a flow's result does not depend on
timing, each call is computed as it came, so that the result is the same bits as in the sampler: a batch of other rows would
round differently. Elsewhere, calls that wait for the same weights are computed together.
"""
