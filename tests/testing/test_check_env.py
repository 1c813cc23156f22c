"""`check_env` says of an environment what `levada check` says."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

from levada.rl.envs.task import Task, TaskError
from levada.testing import check_env


def test_a_sound_environment_gets_no_remark() -> None:
    assert check_env(Task("support.envs.small:SmallPlain-v0")) == []


def test_remarks_are_plain_text() -> None:
    remarks = check_env(Task("CartPole-v1"))
    assert len(remarks) == 2
    assert all(remark.startswith("A Box observation space") for remark in remarks)


def test_a_broken_contract_is_an_error_that_names_the_environment() -> None:
    with pytest.raises(TaskError, match=r"'support\.envs\.broken:BrokenOldReset-v0' breaks Gymnasium's contract"):
        check_env(Task("support.envs.broken:BrokenOldReset-v0"))


def test_what_the_environment_raises_stays_what_it_is() -> None:
    with pytest.raises(KeyError, match="reset failed"):
        check_env(Task("support.envs.broken:BrokenRaisesInReset-v0"))


def test_vector_environments_are_not_checked() -> None:
    def many(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs)

    assert check_env(Task(many)) == []
