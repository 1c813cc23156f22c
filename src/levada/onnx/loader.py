"""A policy that was exported by levada, without levada: needs numpy and onnxruntime.

policy = Policy("policy.onnx")
action = policy.act(observation)  # one observation as the environment returns it, or a batch of them
policy.reset()  # at the start of an episode, for a recurrent policy
"""

import json
from functools import reduce
from typing import Any

import numpy as np
import onnxruntime


class Policy:
    """Acts as the policy did; a recurrent one keeps its state between calls."""

    def __init__(self, path: Any) -> None:
        self.session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.layout: Any = json.loads(self.session.get_modelmeta().custom_metadata_map["layout"])
        self.state: Any = None

    def reset(self) -> None:
        """Begin an episode."""
        self.state = None

    def act(self, obs: Any, mask: Any = None) -> Any:
        """Return the action, or the actions of a batch; `mask` is nonzero where an action is allowed."""
        feed, is_one = {}, False
        for name, (keys, dtype, num_dims) in self.layout["obs"].items():
            leaf = np.asarray(reduce(lambda nest, key: nest[key], keys, obs), dtype)
            is_one = leaf.ndim == num_dims
            feed[name] = leaf[None] if is_one else leaf
        num_rows = len(next(iter(feed.values())))
        if mask is not None:
            feed["mask"] = np.asarray(mask, np.int8).reshape(num_rows, -1)
        if size := self.layout["state_size"]:
            is_new = self.state is None or len(self.state) != num_rows
            feed["state"] = np.zeros((num_rows, size), np.float32) if is_new else self.state
        action, _, *state = self.session.run(None, feed)
        self.state = state[0] if state else None
        return action[0] if is_one else action
