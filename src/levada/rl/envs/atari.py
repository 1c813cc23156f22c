"""Atari through ale-py's vector environment, which preprocesses in C++: gray 84 x 84 images, the maximum of the last two of
four frames, up to 30 no-ops at the start (Mnih et al. 2015, Nature 518; Machado et al. 2018, arXiv 1709.06009, for sticky
actions).

It could also stack frames and clip rewards, but by default levada does both: each frame is then transferred once, and the
reported return is the score of the game.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium

from levada.rl.envs.registry import TaskError

NUM_FRAMES = 4
"""Default number of frames of a stack."""
REWARD_CLIP = 1.0
STICKY = 0.25
"""Probability that the previous action is repeated in place of the next one, as in the v5 ids."""


class Preprocessing(NamedTuple):
    """Split of the preprocessing between the environment (`env_kwargs`) and levada."""

    env_kwargs: Mapping[str, Any]
    frame_stack: int | None
    reward_clip: float | None


def is_atari(env_id: str) -> bool:
    """Return whether an id belongs to ale-py, as far as this is known before it is registered.

    >>> is_atari("ALE/Pong-v5"), is_atari("ale_py:ALE/Pong-v5"), is_atari("CartPole-v1")
    (True, True, False)
    """
    name = env_id.rpartition(":")[2]
    spec = gymnasium.registry.get(name)
    entry = None if spec is None else spec.vector_entry_point
    return name.startswith("ALE/") and (spec is None or str(entry).startswith("ale_py."))


def preprocessing(
    kwargs: Mapping[str, Any], frame_stack: int | None, reward_clip: float | None, by_envpool: bool = False
) -> Preprocessing:
    """Fill in the standard preprocessing. EnvPool's argument names differ from ale-py's, and its actions are not sticky by
    default. Raise TaskError if the arguments would stack stacks.

    >>> preprocessing({}, None, None)
    Preprocessing(env_kwargs={'stack_num': 1, 'reward_clipping': False}, frame_stack=4, reward_clip=1.0)
    >>> preprocessing({"stack_num": 2, "reward_clipping": False}, None, None)
    Preprocessing(env_kwargs={'stack_num': 2, 'reward_clipping': False}, frame_stack=None, reward_clip=None)
    """
    asked = {"repeat_action_probability": STICKY, **kwargs} if by_envpool else dict(kwargs)
    if frame_stack is not None and asked.get("stack_num", 1) != 1:
        msg = (
            f"env_kwargs has stack_num={asked['stack_num']!r} and frame_stack is {frame_stack}, which would make stacks of "
            "stacks; give frame_stack alone"
        )
        raise TaskError(msg)
    if given := [name for name in ("episodic_life", "life_loss_info") if asked.get(name)]:
        message = (
            f"{given[0]}=True: the vector environment says that an episode ended when a life is lost, and what follows is taken "
            "for a new game; Task(life_loss=True) ends the episode for the learner alone, and the game goes on"
        )
        warnings.warn(message, UserWarning, stacklevel=4)
    if "stack_num" not in asked:
        asked["stack_num"], frame_stack = 1, frame_stack or NUM_FRAMES
    clips = "reward_clip" if by_envpool else "reward_clipping"
    if asked.get(clips, True):
        asked[clips], reward_clip = False, reward_clip or REWARD_CLIP
    return Preprocessing(asked, frame_stack, reward_clip)
