"""A flow on a Ray cluster: the deployment, the transport in the main process, and the actors that run shards."""

from levada.runners.ray.deployment import Ray

__all__ = ["Ray"]
