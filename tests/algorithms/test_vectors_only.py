"""Algorithms whose critic sees observations and actions take vectors: what else there is is refused, and PPO takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

import levada
from levada.algorithms.ppo import PPO
from levada.rl.data.spaces import SpaceError
from levada.rl.envs.task import Task


@pytest.mark.parametrize("env", ["SmallImageBoxAction-v0", "SmallDictBoxAction-v0"])
@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("sac", "SAC with Box actions takes vectors as observations"),
        ("td3", "TD3 with Box actions takes vectors as observations"),
        ("ddpg", "DDPG with Box actions takes vectors as observations"),
        ("apex_ddpg", "ApexDDPG with Box actions takes vectors as observations"),
        ("recurrent_sac", "RecurrentSAC needs Discrete actions"),
    ],
)
def test_images_and_dicts_with_box_actions_are_refused_before_anything_starts(
    tmp_path: Path, algorithm: str, said: str, env: str
) -> None:
    with pytest.raises(SpaceError, match=said) as refused:
        levada.train(algorithm, f"small_envs:{env}", until="updates=1", out=tmp_path / "run", display="quiet")
    assert not (tmp_path / "run").exists()
    assert "ppo" in str(refused.value)


def test_the_way_out_takes_them() -> None:
    for network in (None, "levada.rl:RecurrentNet"):
        PPO(network=network, device="cpu").flow(Task("small_envs:SmallImageBoxAction-v0")).check()
