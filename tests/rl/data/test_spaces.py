"""Supported spaces, their canonical form, and nests of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.flow.errors import LevadaError
from levada.rl.data.spaces import (
    SpaceError,
    allocate,
    canonical_action_space,
    canonical_observation_space,
    check_action_space,
    check_observation_space,
    has_action_mask,
    leaf_spaces,
    leaves,
    map_nest,
    mask_sizes,
    named_leaves,
    write,
)
from levada.rl.envs.observations import make_reader

few = settings(max_examples=40, derandomize=True, deadline=None)
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def _discrete(n: int, start: int) -> spaces.Discrete[Any]:
    return spaces.Discrete(n, start=start)


leaf_strategy: st.SearchStrategy[Space[Any]] = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(-1.0, 1.0, shape, dtype),
        shapes,
        st.sampled_from([np.float32, np.float64, np.float16]),
    ),
    st.builds(lambda shape: spaces.Box(0, 255, shape, np.uint8), shapes),
    st.builds(lambda shape: spaces.Box(-5, 5, shape, np.int32), shapes),
    st.builds(_discrete, st.integers(1, 5), st.integers(-3, 3)),
    st.builds(
        lambda nvec, start: spaces.MultiDiscrete(nvec, start=[start] * len(nvec)),
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
        st.integers(-2, 2),
    ),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
)
space_strategy: st.SearchStrategy[Space[Any]] = st.recursive(
    leaf_strategy,
    lambda children: st.one_of(
        st.dictionaries(st.sampled_from("abcd"), children, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(children, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=6,
)


@few
@given(space_strategy)
def test_allocate_makes_zeros_in_the_canonical_form_with_the_leading_dimensions(space: Space[Any]) -> None:
    check_observation_space(space)
    buffers = named_leaves(allocate(space, 4, 2))
    expected = leaf_spaces(canonical_observation_space(space))
    assert list(buffers) == list(expected) == list(leaf_spaces(space))
    for path, buffer in buffers.items():
        shape = expected[path].shape
        assert shape is not None
        assert buffer.shape == (4, 2, *shape)
        assert buffer.dtype == expected[path].dtype
        assert buffer.dtype not in (np.float64, np.float16)
        assert buffer.flags.c_contiguous
        assert not buffer.any()


@few
@given(space_strategy, st.integers(0, 2**31 - 1))
def test_write_changes_one_row_and_nothing_else(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    sample = space.sample()
    buffers = allocate(space, 3)
    write(buffers, 1, sample)
    for written, value in zip(leaves(buffers), leaves(sample), strict=True):
        np.testing.assert_array_equal(written[1], np.asarray(value).astype(written.dtype))
        assert not written[[0, 2]].any()


@few
@given(space_strategy, st.integers(0, 2**31 - 1))
def test_what_is_read_lies_in_the_canonical_space(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    canonical = canonical_observation_space(space)
    reader = make_reader(space, 2)
    rows = reader.allocate()
    samples = [space.sample(), space.sample()]
    for row, sample in enumerate(samples):
        reader.put(rows, row, sample)
    batch = reader.read(rows)
    assert batch is not rows
    for row in range(2):
        assert canonical.contains(map_nest(lambda leaf, row=row: np.asarray(leaf[row]), batch))
    starts = [getattr(leaf, "start", 0) for leaf in leaf_spaces(space).values()]
    for leaf, start, *values in zip(leaves(batch), starts, *(leaves(s) for s in samples), strict=True):
        expected = np.stack([np.asarray(value) - start for value in values]).astype(leaf.dtype)
        np.testing.assert_array_equal(leaf, expected)


@few
@given(space_strategy)
def test_canonical_form_is_a_fixed_point(space: Space[Any]) -> None:
    canonical = canonical_observation_space(space)
    assert canonical_observation_space(canonical) == canonical
    check_observation_space(canonical)


def test_map_nest_keeps_structure_and_takes_leaves_in_step() -> None:
    nest = {"b": np.ones(2), "a": (np.zeros(1), {"c": np.arange(3)})}
    doubled = map_nest(lambda x, y: x + y, nest, nest)
    assert list(named_leaves(doubled)) == ["b", "a/0", "a/1/c"]
    np.testing.assert_array_equal(doubled["a"][1]["c"], [0, 2, 4])
    assert map_nest(len, (np.ones(3), np.ones(4))) == (3, 4)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"a": 1}, {"b": 1}, r"got a dict of \['b'\] where the first nest has a dict of \['a'\]"),
        ({"a": 1}, 3, r"got a leaf where the first nest has a dict of \['a'\]"),
        ((1, 2), (1,), "got a tuple of 1 where the first nest has a tuple of 2"),
        (1, (1,), "got a tuple of 1 where the first nest has a leaf"),
    ],
)
def test_map_nest_refuses_nests_of_different_structure(first: Any, second: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        map_nest(lambda x, y: x, first, second)


def test_write_refuses_other_keys() -> None:
    with pytest.raises(ValueError, match=r"write: got a dict of \['b'\] where the buffers are a dict of \['a'\]"):
        write({"a": np.zeros(2)}, 0, {"b": 1.0})
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        write((np.zeros(2), np.zeros(2)), 0, (1.0,))


def test_float64_bounds_beyond_float32_become_infinite_without_a_warning() -> None:
    space = canonical_observation_space(spaces.Box(-1e300, 1e300, (2,), np.float64))
    assert isinstance(space, spaces.Box)
    assert space.dtype == np.float32
    assert np.isneginf(space.low).all()
    assert np.isposinf(space.high).all()


def test_canonical_actions_count_from_zero() -> None:
    assert canonical_action_space(spaces.Discrete(3, start=-1)) == spaces.Discrete(3)
    multi = spaces.MultiDiscrete([2, 3], start=[1, 5])
    assert canonical_action_space(multi) == spaces.MultiDiscrete([2, 3])
    assert canonical_action_space(spaces.MultiBinary(3)) == spaces.MultiBinary(3)
    assert canonical_action_space(spaces.Box(-2, 2, (1,), np.float64)) == spaces.Box(-2, 2, (1,), np.float32)


class _Strange(Space[Any]):
    def __repr__(self) -> str:
        return "Strange()"


SUPPORTED = "levada supports Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
OBSERVATION_ERRORS: list[tuple[Space[Any], str]] = [
    (spaces.Text(3, charset="ab"), rf"observation space is Text.*; {SUPPORTED}; encode the text as a Box"),
    (spaces.Graph(spaces.Box(0, 1), None), "give nodes and edges as Boxes of a fixed size"),
    (spaces.Sequence(spaces.Box(0, 1)), "pad it to its greatest length"),
    (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "a Discrete that says which one is meant"),
    (_Strange(), r"observation space is Strange\(\); .*; translate it in an ObservationWrapper"),
    (spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), _Strange()])}), r"observation space at 'a/1' is Strange"),
    (spaces.Dict({}), "observation space is an empty Dict; give it at least one space"),
    (spaces.Dict({"a": spaces.Tuple([])}), "observation space at 'a' is an empty Tuple"),
    (spaces.Dict({1: spaces.Discrete(2)}), "a Dict with the key 1; keys are str: did you mean '1'"),
    (spaces.Dict({"a": spaces.Box(0, 1, (2, 0))}), "observation space at 'a' is .* no elements; leave it out"),
    (
        spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}),
        r"two leaves with the same path, among \['a/b', 'a/b'\]; rename a key",
    ),
]


@pytest.mark.parametrize(("space", "message"), OBSERVATION_ERRORS)
def test_unsupported_observations_are_refused(space: Space[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message) as caught:
        check_observation_space(space)
    assert isinstance(caught.value, LevadaError)
    assert isinstance(caught.value, ValueError)


def _nan_box() -> spaces.Box[Any]:
    box = spaces.Box(-1, 1, (2,), np.float32)
    box.high = np.array([1.0, np.nan], np.float32)
    return box


ACTION_ERRORS: list[tuple[Space[Any], str]] = [
    (spaces.MultiBinary([2, 2]), "MultiDiscrete and MultiBinary of one dimension only; flatten it"),
    (spaces.MultiDiscrete([[2, 2], [2, 2]]), r"of shape \(2, 2\); .*of one dimension only"),
    (spaces.Box(0, 3, (2,), np.int64), r"with dtype int64; .*; did you mean MultiDiscrete, or dtype=np.float32\?"),
    (spaces.Box(0, 1, (0,), np.float32), "which has no elements"),
    (_nan_box(), "with a bound that is NaN"),
    (spaces.Dict({"a": spaces.Discrete(2)}), "not Dict or Tuple; flatten it"),
    (spaces.Tuple([spaces.Discrete(2)]), "not Dict or Tuple; flatten it"),
    (spaces.Text(3, charset="ab"), "action space is Text.*; levada supports Discrete.*; encode the text"),
    (_Strange(), r"action space is Strange\(\); .*; translate it in an ActionWrapper"),
]


@pytest.mark.parametrize(("space", "message"), ACTION_ERRORS)
def test_unsupported_actions_are_refused(space: Space[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        check_action_space(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        spaces.Box(0.0, np.inf, (1,), np.float32),
    ],
)
def test_supported_actions_are_accepted(space: Space[Any]) -> None:
    check_action_space(space)


def _masked(mask: Space[Any]) -> spaces.Dict:
    return spaces.Dict({"obs": spaces.Box(-1, 1, (2,)), "action_mask": mask})


def test_masks_of_discrete_and_multi_discrete_actions() -> None:
    for mask in (spaces.MultiBinary(5), spaces.Box(0, 1, (5,), np.int8), spaces.Box(0, 1, (5,), np.float32)):
        assert has_action_mask(_masked(mask))
        check_observation_space(_masked(mask), spaces.Discrete(5, start=1))
        check_observation_space(_masked(mask), spaces.MultiDiscrete([2, 3]))
    assert not has_action_mask(spaces.Dict({"obs": spaces.Discrete(2)}))
    assert not has_action_mask(spaces.Discrete(2))
    assert mask_sizes(spaces.MultiBinary(3)) == ()


@pytest.mark.parametrize(
    ("space", "action_space", "message"),
    [
        (_masked(spaces.MultiBinary(4)), spaces.Discrete(5), r"expected MultiBinary\(5\) or a Box of shape \(5,\)"),
        (_masked(spaces.MultiBinary(3)), spaces.MultiDiscrete([2, 3]), r"expected MultiBinary\(5\)"),
        (_masked(spaces.Discrete(5)), spaces.Discrete(5), "'action_mask' is Discrete"),
        (
            _masked(spaces.MultiBinary(2)),
            spaces.Box(-1, 1, (2,)),
            "only Discrete and MultiDiscrete actions can be masked",
        ),
        (
            spaces.Dict({"observation": spaces.Discrete(2), "action_mask": spaces.MultiBinary(5)}),
            spaces.Discrete(5),
            r"a Dict of \['action_mask', 'observation'\]: .* exactly 'obs' and 'action_mask'; put everything else under 'obs'",
        ),
    ],
)
def test_misshapen_masks_are_refused(space: Space[Any], action_space: Space[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        check_observation_space(space, action_space)
