"""Spaces: parsing of `--over`, combinations, and random draws."""

import numpy as np
import pytest

from levada.sweeps.errors import SweepError
from levada.sweeps.space import Choices, Range, as_integers, check_space, drawn, grid, parse_parameter


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("lr=1e-4,3e-4", Choices("lr", ("1e-4", "3e-4"))),
        ("hidden-sizes=64 64, 256 256", Choices("hidden_sizes", ("64 64", "256 256"))),
        ("optimizer_kwargs=eps=1,eps=2", Choices("optimizer_kwargs", ("eps=1", "eps=2"))),
        ("a=log", Choices("a", ("log",))),
        ("a=uniform:-1:1", Range("a", -1.0, 1.0, is_log=False, is_integer=False)),
        ("a=int:1:20", Range("a", 1.0, 20.0, is_log=False, is_integer=True)),
    ],
)
def test_what_is_parsed(text, parsed):
    assert parse_parameter(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected NAME=VALUES"),
        ("lr", "expected NAME=VALUES"),
        ("=1,2", "expected NAME=VALUES"),
        ("1=2", "expected NAME=VALUES"),
        ("lr=", "expected NAME=VALUES"),
        ("lr=1,,2", "a value is empty"),
        ("lr=1,2,1", "1 is given 2 times; keep one"),
        ("lr=log:1", "expected two numbers, such as `lr=log:1:100`"),
        ("lr=log:1:2:3", "expected two numbers"),
        ("lr=log:a:b", "expected two numbers"),
        ("lr=uniform:2:1", "expected a lower and a higher finite number"),
        ("lr=uniform:0:inf", "expected a lower and a higher finite number"),
        ("lr=uniform:0:nan", "expected a lower and a higher finite number"),
        ("lr=log:0:1", "a logarithmic range begins above 0"),
        ("lr=int:1:2.5", "expected integers as ends of the range"),
        ("lr=int:1:1e300", "expected integers as ends of the range"),
        ("lr=\x1b[31m,", "a value is empty"),
    ],
)
def test_what_cannot_be_parsed(text, message):
    with pytest.raises(SweepError) as error:
        parse_parameter(text)
    assert message in str(error.value) and "\x1b" not in str(error.value)


def test_spaces_without_settings_or_with_one_twice():
    with pytest.raises(SweepError, match="a sweep needs settings to vary: --over NAME=VALUES"):
        check_space([])
    with pytest.raises(SweepError, match="--over has a 2 times; keep one"):
        check_space([Choices("a", ("1",)), Choices("a", ("2",))])


def test_a_grid_has_all_combinations_and_no_ranges():
    space = [Choices("a", ("1", "2")), Choices("b", ("x", "y", "z"))]
    assert [tuple(each.values()) for each in grid(space)] == [(a, b) for a in "12" for b in "xyz"]
    with pytest.raises(SweepError, match="--over a has a range, and a grid needs values"):
        grid([parse_parameter("a=int:1:2")])
    with pytest.raises(SweepError, match="the grid has 1,000,000 trials, expected at most 10,000"):
        grid([Choices(name, tuple(map(str, range(100)))) for name in "abc"])


def test_draws_depend_on_the_number_alone_and_fill_the_range():
    space = [parse_parameter(text) for text in ("a=log:1e-4:1e-2", "b=int:1:3", "c=uniform:-1:1", "d=x,y")]
    space.append(as_integers(parse_parameter("e=log:1:100")))
    draws = [drawn(space, number) for number in range(1, 400)]
    assert draws[6] == drawn(space, 7)
    columns = {name: [draw[name] for draw in draws] for name in "abcde"}
    a, c = np.array(columns["a"], float), np.array(columns["c"], float)
    assert 1e-4 <= a.min() < 2e-4 and 5e-3 < a.max() <= 1e-2
    assert abs(np.log10(a).mean() + 3.0) < 0.1
    assert -1.0 <= c.min() < -0.9 and 0.9 < c.max() <= 1.0
    assert set(columns["b"]) == {"1", "2", "3"} and set(columns["d"]) == {"x", "y"}
    e = np.array(columns["e"], int)
    assert e.min() == 1 and e.max() <= 100 and 5 < np.median(e) < 20
    assert all(parameter.holds(draw[parameter.name]) for parameter in space for draw in draws)


@pytest.mark.parametrize("value", ["0", "4", "1.5", "x", ""])
def test_values_outside_of_a_range(value):
    assert not parse_parameter("a=int:1:3").holds(value)


def test_a_field_of_one_policy_cannot_be_varied():
    with pytest.raises(
        SweepError, match=r"--over ppo.learning_rate=1,2: a field of one policy, POLICY.FIELD, cannot be varied"
    ):
        parse_parameter("ppo.learning_rate=1,2")
