"""A versioned register: readers get the newest, or the version that their ticket names."""

import pytest

from levada.schedule import RegisterMachine


def test_a_register_begins_with_the_initial_weights():
    register = RegisterMachine("weights", keep=1)
    assert register.newest == register.resolve(None) == register.resolve(0) == 0


def test_only_what_a_ticket_can_name_is_kept():
    register = RegisterMachine("weights", keep=3)
    assert [register.publish(version) for version in (1, 2, 3, 4)] == [[], [], [0], [1]]
    assert [register.resolve(version) for version in (2, 3, 4, None)] == [2, 3, 4, 4]


def test_versions_may_be_published_with_gaps():
    register = RegisterMachine("weights", keep=2)
    assert register.publish(5) == []
    assert register.publish(10) == [0]
    assert register.resolve(5) == 5


@pytest.mark.parametrize("version", [0, 1, 7])
def test_a_version_that_is_gone_or_not_yet_there_is_a_defect(version: int):
    register = RegisterMachine("weights", keep=1)
    register.publish(3)
    with pytest.raises(AssertionError, match=f"weights: version {version} is gone or not yet there"):
        register.resolve(version)


@pytest.mark.parametrize("version", [1, 2])
def test_versions_only_go_up(version: int):
    register = RegisterMachine("weights", keep=4)
    register.publish(2)
    with pytest.raises(AssertionError, match=f"version {version} after 2"):
        register.publish(version)
