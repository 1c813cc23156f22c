"""A policy that was exported by levada, without levada: needs numpy and onnxruntime.

policy = Policy("policy.onnx")
action = policy.act(observation)  # one observation as the environment returns it, or a batch of them
policy.reset()  # at the start of an episode, for a recurrent policy
"""

from typing import Any

import numpy as np
import onnxruntime


class Policy:
    """Acts as the policy did; a recurrent one keeps its state between calls."""

    def __init__(self, path: Any) -> None:
        self.session: Any = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.inputs: dict[str, Any] = {each.name: each for each in self.session.get_inputs()}
        self.state: Any = None

    def reset(self) -> None:
        """Begin an episode."""
        self.state = None

    def act(self, obs: Any, mask: Any = None) -> Any:
        """Return the action, or the actions of a batch; `mask` is nonzero where an action is allowed."""
        feed = {name: self._leaf(name, obs) for name in self.inputs if name.split("/")[0] == "obs"}
        name, leaf = next(iter(feed.items()))
        if is_one := leaf.ndim < len(self.inputs[name].shape):
            feed = {name: value[None] for name, value in feed.items()}
        num_rows = len(feed[name])
        if mask is not None:
            feed["mask"] = np.asarray(mask, np.int8).reshape(num_rows, -1)
        if "state" in self.inputs:
            is_new = self.state is None or len(self.state) != num_rows
            feed["state"] = np.zeros((num_rows, self.inputs["state"].shape[1]), np.float32) if is_new else self.state
        action, _, *state = self.session.run(None, feed)
        self.state = state[0] if state else None
        return action[0] if is_one else action

    def _leaf(self, name: str, obs: Any) -> Any:
        path = name.removeprefix("obs").removeprefix("/")
        while path:
            if isinstance(obs, tuple | list):
                key, _, path = path.partition("/")
                obs = obs[int(key)]
            else:  # a key may contain a slash
                key = max((key for key in obs if f"{path}/".startswith(f"{key}/")), key=len)
                obs, path = obs[key], path[len(key) + 1 :]
        dtype = self.inputs[name].type[len("tensor(") : -1]
        return np.asarray(obs, {"float": "float32", "double": "float64"}.get(dtype, dtype))
