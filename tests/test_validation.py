"""Fields are checked against their annotations: in every algorithm, and in classes of the user's."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import numpy as np
import pytest
from annotated_types import Ge, Interval, MinLen, MultipleOf, Predicate

import levada as lv
from levada.algorithms.algorithm import Algorithm
from levada.algorithms.checks import ConfigError
from levada.algorithms.names import ALGORITHMS
from levada.algorithms.registry import find_algorithm
from levada.cli import main
from levada.flow import Flow
from levada.validation import (
    FiniteFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Text,
    UnitFloat,
    accepted,
    accepted_by,
    check_fields,
)

CLASSES = [find_algorithm(name) for name in ALGORITHMS]
STRANGE = [
    None,
    True,
    -1,
    0,
    1.5,
    2.0,
    "",
    "x",
    float("nan"),
    float("inf"),
    -0.5,
    (),
    (0,),
    [64, "64"],
    10**400,
    object(),
]
UNCHECKED = {"network", "features_extractor", "optimizer_kwargs", "of_kwargs", "policy_kwargs"}
"""Fields with checks of their own."""


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_field_of_an_algorithm_says_what_it_accepts(cls: type[Algorithm]) -> None:
    fields = {field.name for field in dataclasses.fields(cls)}
    assert fields - accepted_by(cls).keys() <= UNCHECKED


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_no_strange_value_of_any_field_is_taken(cls: Any) -> None:
    tried = 0
    for name, kind in accepted_by(cls).items():
        for value in STRANGE:
            if not kind.check(value):
                tried += 1
                with pytest.raises(ConfigError) as caught:
                    cls(**{name: value})
                assert f"{cls.__name__}({name}=" in str(caught.value), caught.value
    assert tried > 10 * len(dataclasses.fields(cls))


@pytest.mark.parametrize(
    ("hint", "right", "wrong", "words"),
    [
        (PositiveInt, [1, 7], [0, True, 1.0, "1", None], "an integer >= 1"),
        (NonNegativeInt | None, [0, None], [-1, 0.0], "an integer >= 0, or None"),
        (Optional[UnitFloat], [0, 1, 0.5, None], [-0.1, 1.1, float("nan")], "a number from 0 to 1, or None"),  # noqa: UP045
        (PositiveFloat, [1, 0.1], [0, float("inf"), 10**400, True], "a finite number > 0"),
        (FiniteFloat, [-1, 0.5], [float("nan"), float("-inf")], "a finite number"),
        (float, [1, float("inf")], ["1", True], "a number"),
        (bool, [True, False], [0, 1, None], "True or False"),
        (Literal["a", "b"] | bool, ["a", True], ["c", 1], "'a', 'b', True or False"),
        (Literal["a"] | None, ["a", None], ["None", 0], "'a' or None"),
        (PositiveInt | Literal["auto"], [1, "auto"], [0, "on"], "an integer >= 1, or 'auto'"),
        (Text, ["a"], ["", 1], "a name"),
        (str, [""], [1, None], "text"),
        (tuple[PositiveInt, ...], [(), (1, 2), [3]], [(0,), 3, "12", None], "a sequence of integers >= 1, such as (64, 64)"),
        (Annotated[int, Interval(ge=2, lt=5)], [2, 4], [1, 5], "an integer >= 2 and < 5"),
    ],
)  # fmt: skip
def test_an_annotation_is_what_is_accepted(hint: Any, right: list[Any], wrong: list[Any], words: str) -> None:
    kind = accepted(hint)
    assert kind is not None and kind.words == words
    assert [kind.check(value) for value in right] == [True] * len(right)
    assert [kind.check(value) for value in wrong] == [False] * len(wrong)


@dataclass(frozen=True, kw_only=True)
class Base(Algorithm):
    num_things: PositiveInt = 1
    scale: PositiveFloat | None = None
    sizes: tuple[PositiveInt, ...] = ()

    def flow(self, task: lv.Task) -> Flow:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Other(Base):
    num_things: int = 2
    scale: float | None = 0.5
    sizes: tuple[int, ...] = (3,)


@dataclass(frozen=True, kw_only=True)
class Wider(Base):
    num_things: NonNegativeInt = 0


@pytest.mark.parametrize("fields", [{"num_things": 0}, {"scale": -1.0}, {"sizes": (0,)}])
def test_another_default_keeps_the_range(fields: Any) -> None:
    with pytest.raises(ConfigError):
        Other(**fields)


def test_another_range_takes_its_place() -> None:
    assert Wider().num_things == 0
    with pytest.raises(ConfigError, match=r"Wider\(num_things=-1\): expected an integer >= 0"):
        Wider(num_things=-1)


def test_annotations_that_cannot_be_checked_are_left_alone() -> None:
    @dataclass
    class Loose:
        local: Unknown = 1  # type: ignore[name-defined]  # noqa: F821
        anything: Any = None
        count: Annotated[int, Ge(1)] = 0

    with pytest.raises(ValueError, match=r"Loose\(count=0\)"):
        check_fields(Loose(), ValueError)
    assert accepted_by(Loose).keys() == {"count"}


def test_the_help_shows_the_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--help"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "--num-envs INT>=1",
        "--hidden-sizes [INT>=1 ...]",
        "--optimizer-kwargs [NAME=VALUE ...]",
        "--clip-range FLOAT>0",
        "--gae-lambda 0<=FLOAT<=1",
        "--target-kl FLOAT>0|None",
    ):
        assert words in shown


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[int, MultipleOf(2)],
        Annotated[float, Predicate(bool)],
        Annotated[int | None, Ge(1)],
        Annotated[int, MinLen(1)],
    ],
)
def test_a_constraint_that_is_not_understood_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="expected limits of an int or a float"):
        accepted(hint)


def test_an_integer_in_a_field_of_floats_becomes_a_float() -> None:
    config = lv.PPO(learning_rate=1, max_grad_norm=1, discount=1)
    assert [repr(x) for x in (config.learning_rate, config.max_grad_norm, config.discount)] == ["1.0"] * 3
    assert type(config.num_envs) is int


def test_numbers_of_numpy_are_taken_as_those_of_python() -> None:
    config = lv.PPO(
        num_envs=np.int64(8),
        learning_rate=np.float32(0.5),
        hidden_sizes=(np.int32(4), 8),
        normalize_obs=np.True_,
        discount=np.float64(0.9),
        gae_lambda=np.int8(1),
    )
    assert config == lv.PPO(learning_rate=0.5, hidden_sizes=(4, 8), normalize_obs=True, discount=0.9, gae_lambda=1.0)
    for name in ("num_envs", "learning_rate", "normalize_obs", "discount", "gae_lambda"):
        assert type(getattr(config, name)) is type(getattr(lv.PPO(), name))
    for wrong in (np.float64(8.0), np.array([8]), np.int64(0)):
        with pytest.raises(ConfigError, match="expected an integer >= 1"):
            lv.PPO(num_envs=wrong)


def test_limits_are_shown_in_full() -> None:
    assert accepted(Annotated[int, Ge(1_234_567)])[1:3] == ("an integer >= 1234567", "INT>=1234567")  # type: ignore[index]
    large = accepted(Annotated[float, Interval(gt=1e-9, le=1_234_567.5)])
    assert large is not None
    assert large[1:3] == ("a number > 1e-09 and <= 1234567.5", "1e-09<FLOAT<=1234567.5")


@pytest.mark.parametrize("num_bits", [64, 1_000, 100_000])
def test_an_integer_that_no_machine_holds_is_refused_without_its_digits(num_bits: int) -> None:
    assert lv.PPO(anneal_steps=2**64 - 1).anneal_steps == 2**64 - 1
    with pytest.raises(ConfigError, match=r"^PPO\(anneal_steps=<an integer of \d+ bits>\): .*, of at most 64 bits$"):
        lv.PPO(anneal_steps=2**num_bits)
