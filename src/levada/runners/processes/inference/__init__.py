"""Remote inference: one server, in a process or a thread, computes actions for all samplers.

The server creates each served model of a shard (`Shard.serve`) once per version of the weights in use. Arguments and results
of a call are arrays in shared memory; messages contain only their location. If a flow's result does not depend on timing,
each call is computed separately, so that the result is bit-for-bit the same as in the sampler: a batch with other rows would
round differently. Otherwise, calls that wait for the same weights are computed together.
"""
