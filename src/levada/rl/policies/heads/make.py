"""Action heads: convert a row of a network's outputs into an action of one kind of action space.

    space            kind of action                 a row of parameters          stored action
    Discrete         one of n                       n logits                     int64 [...]
    MultiDiscrete    one per set                    sum(nvec) logits             int64 [..., len(nvec)]
    MultiBinary      n binary values                n logits                     int8 [..., n]
    Box              real values                    mean and log_std of each     float32 [..., *shape]

The learner asks a head for a `Distribution` of tensors. A sampler, which acts on small batches, uses NumPy: it draws all noise
of a rollout in one call, and each action then costs a sum and an argmax.

    >>> import numpy as np
    >>> head = action_head(spaces.Discrete(3))
    >>> noise = head.draw(np.random.default_rng(0), num_steps=5, num_envs=2)
    >>> params = np.array([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]], np.float32)
    >>> head.sample(params, noise[0]), head.mode(params)
    (array([0, 2]), array([0, 2]))

Actions belong to the canonical space (see `levada.rl.data.spaces`). Those of a Box without `tanh_squash` are stored as sampled
and may exceed the bounds; the environment's adapter clips them.
"""

from __future__ import annotations

from typing import Any

from gymnasium import Space, spaces

from levada.rl.data.spaces import SpaceError, canonical_action_space, check_action_space
from levada.rl.policies.heads.base import ActionHead
from levada.rl.policies.heads.box import BoxHead, SquashedBoxHead
from levada.rl.policies.heads.discrete import DiscreteHead, MultiBinaryHead, MultiDiscreteHead

__all__ = ["ActionHead", "action_head"]


def action_head(space: Space[Any], tanh_squash: bool = False, state_dependent_std: bool = False) -> ActionHead:
    """Make the head of an action space, or raise SpaceError.

    `tanh_squash`: squash a Box's actions with tanh and scale them to its bounds, instead of clipping them.
    `state_dependent_std`: the network outputs the log_std of a squashed Box; otherwise it is a separate parameter.

    >>> action_head(spaces.MultiDiscrete([2, 3])).num_params
    5
    """
    check_action_space(space)
    space = canonical_action_space(space)
    if tanh_squash and not isinstance(space, spaces.Box):
        msg = f"tanh_squash=True needs a Box action space, got {space}; did you mean tanh_squash=False?"
        raise SpaceError(msg)
    if isinstance(space, spaces.Discrete):
        return DiscreteHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteHead(space)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinaryHead(space)
    assert isinstance(space, spaces.Box)
    return SquashedBoxHead(space, state_dependent_std) if tanh_squash else BoxHead(space)
