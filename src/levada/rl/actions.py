"""Action heads: what turns a row of a network's output into an action of one kind of action space.

    space            kind of action                 a row of parameters          stored action
    Discrete         one of n                       n logits                     int64 [...]
    MultiDiscrete    one of each of several sets    sum(nvec) logits             int64 [..., len(nvec)]
    MultiBinary      switches                       one logit for each           int8 [..., n]
    Box              numbers                        mean and log_std of each     float32 [..., *shape]

The learner asks a head for a `Distribution` of tensors. A sampler, which acts many thousand times a second on
small batches, uses numpy: all noise of a rollout is drawn in one call, and one action then costs a sum and an
argmax.

    >>> import numpy as np
    >>> head = action_head(spaces.Discrete(3))
    >>> noise = head.draw(np.random.default_rng(0), num_steps=5, num_envs=2)
    >>> params = np.array([[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]], np.float32)
    >>> head.sample(params, noise[0]), head.mode(params)
    (array([0, 2]), array([0, 2]))

Both sides follow the same law, which the tests compare. Actions are those of the canonical space (see
`levada.rl.spaces`): they count from 0. Those of a Box without `squash` are stored as they were sampled and
may lie outside of the bounds: the environment's adapter clips them.
"""

from __future__ import annotations

from typing import Any

from gymnasium import Space, spaces

from levada.rl._action_head import ActionHead
from levada.rl._box_heads import BoxHead, SquashedBoxHead
from levada.rl._choice_heads import DiscreteHead, MultiBinaryHead, MultiDiscreteHead
from levada.rl.spaces import SpaceError, canonical_action_space, check_action_space

__all__ = ["ActionHead", "action_head"]


def action_head(space: Space[Any], squash: bool = False, state_std: bool = False) -> ActionHead:
    """Make the head of an action space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary or a floating Box.
        squash: send a Box's actions through tanh and scale them to its bounds, instead of clipping them.
        state_std: the row of parameters brings the log_std of a squashed Box; else it is a parameter of its own.

    Raises:
        SpaceError: the space is of another kind, or cannot be squashed.

    >>> action_head(spaces.MultiDiscrete([2, 3])).num_params
    5

    """
    check_action_space(space)
    space = canonical_action_space(space)
    if squash and not isinstance(space, spaces.Box):
        msg = f"squash=True needs a Box action space, got {space}; did you mean squash=False?"
        raise SpaceError(msg)
    if isinstance(space, spaces.Discrete):
        return DiscreteHead(space)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteHead(space)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinaryHead(space)
    assert isinstance(space, spaces.Box)
    return SquashedBoxHead(space, state_std) if squash else BoxHead(space)
