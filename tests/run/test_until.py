"""When a run ends: parsing, refusals, and which condition holds first."""

import math
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from levada.run.until import Until, UntilError

small = settings(derandomize=True, database=None, deadline=None, max_examples=200)


@dataclass
class Progress:
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    elapsed_s: float = 0.0
    return_mean_100: float | None = None
    has_goal: bool = False
    reached_goal: str | None = None
    versions: dict[str, int] = field(default_factory=dict)

    @property
    def reached_return(self) -> float | None:
        return self.return_mean_100 if self.episodes >= 100 else None


@pytest.mark.parametrize(
    "conditions",
    [
        ["return=475 steps=100_000 updates=30 episodes=500 minutes=2"],
        ["return=475,steps=100_000,updates=30,episodes=500,minutes=2"],
        ["  return = 475,  steps =1e5 ", "updates=30", "episodes=500, minutes=2.0"],
        [{"return": 475, "steps": 100_000.0, "updates": 30, "episodes": 500, "minutes": 2}],
        ["return=475", {"steps": 100_000, "updates": 30}, "episodes=500 minutes=2"],
    ],
)
def test_all_ways_of_writing_mean_the_same(conditions):
    until = Until.parse(*conditions)
    assert until == Until(return_mean=475, steps=100_000, updates=30, episodes=500, minutes=2)
    assert str(until) == "return=475 steps=100000 updates=30 episodes=500 minutes=2"
    assert isinstance(until.steps, int)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], "until is empty"),
        ([""], "until is empty"),
        ([" , "], "until is empty"),
        ([{}], "until is empty"),
        (["retrun=475"], "unknown condition 'retrun'.*did you mean 'return'"),
        (["reward=475"], "did you mean 'return'"),
        (["timesteps=5"], "did you mean 'steps'"),
        (["minute=5"], "did you mean 'minutes'"),
        (["qqqq=5"], r"expected one of return, eval_return, plateau, steps, updates, episodes, minutes$"),
        ([{"Steps": 3}], "did you mean 'steps'"),
        (["475"], "'475' is not name=value, for example until='return=475 steps=100_000'$"),
        (["steps=100,000"], "write numbers without commas, as 100_000"),
        (["steps"], "'steps' is not name=value"),
        (["return=good"], "return=good is not a number"),
        (["return="], "return= is not a number"),
        (["return==3"], "is not a number"),
        (["return=nan"], "return=nan is not a finite number"),
        (["return=inf"], "return=inf is not a finite number"),
        (["steps=1e999"], "steps=inf is not a finite number"),
        ([{"minutes": math.nan}], "minutes=nan is not a finite number"),
        ([{"steps": True}], "steps=True is not a number"),
        ([{"steps": None}], "steps=None is not a number"),
        (["steps=1.5"], "steps=1.5 must be a whole number"),
        (["steps=0"], "steps=0 must be positive"),
        (["updates=-3"], "updates=-3 must be positive"),
        (["episodes=0"], "episodes=0 must be positive"),
        (["minutes=-0.5"], "minutes=-0.5 must be positive"),
        (["minutes=0"], "minutes=0 must be positive"),
        (["steps=5 steps=6"], "steps is given twice, as 5 and 6"),
        (["steps=5", {"steps": 6}], "steps is given twice, as 5 and 6"),
        ([475], "got 475, expected text or a mapping"),
    ],
)
def test_mistakes_are_refused_with_what_is_wrong(conditions, message):
    with pytest.raises(UntilError, match=message):
        Until.parse(*conditions)


def test_the_constructor_checks_too():
    with pytest.raises(UntilError, match="steps=0 must be positive"):
        Until(steps=0)
    with pytest.raises(UntilError, match=r"steps=1\.5 must be a whole number"):
        Until(steps=1.5)
    with pytest.raises(UntilError, match="until is empty"):
        Until()


def test_a_return_may_be_negative_or_zero():
    assert Until.parse("return=-110").return_mean == -110
    assert Until.parse("return=0").return_mean == 0


counts = st.none() | st.integers(1, 10**18)
untils = st.builds(
    lambda **given: given,
    return_mean=st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000),
    steps=counts,
    updates=counts,
    episodes=counts,
    minutes=st.none() | st.floats(1e-300, 1e300) | st.integers(1, 10**6),
).filter(lambda given: any(value is not None for value in given.values()))


@small
@given(untils)
def test_text_parses_to_the_same_conditions(given):
    until = Until(**given)
    assert Until.parse(str(until)) == until
    assert Until.parse(dict(until)) == until


@small
@given(st.text(alphabet="returnstepsminutes=0123456789., _-+e\t", max_size=30))
def test_any_text_is_parsed_or_refused(text):
    try:
        until = Until.parse(text)
    except UntilError:
        return
    assert Until.parse(str(until)) == until


def test_nothing_holds_at_the_beginning():
    assert Until.parse("return=-1e9 steps=1 updates=1 episodes=1 minutes=0.01").met(Progress()) is None


@pytest.mark.parametrize(
    ("progress", "stopped_by"),
    [
        (Progress(env_steps=99_999), None),
        (Progress(env_steps=100_000), "steps=100000"),
        (Progress(updates=30), "updates=30"),
        (Progress(episodes=500), "episodes=500"),
        (Progress(elapsed_s=119.9), None),
        (Progress(elapsed_s=120.0), "minutes=2"),
        (Progress(episodes=99, return_mean_100=500.0), None),
        (Progress(episodes=100, return_mean_100=474.99), None),
        (Progress(episodes=100, return_mean_100=math.nan), None),
        (Progress(episodes=100, return_mean_100=475.0), "return=475"),
        (Progress(env_steps=10**6, episodes=100, return_mean_100=475.0), "return=475"),
    ],
)
def test_the_condition_that_holds_is_named(progress, stopped_by):
    until = Until.parse("minutes=2 episodes=500 updates=30 steps=100_000 return=475")
    assert until.met(progress) == stopped_by


def test_a_condition_that_is_not_given_never_holds():
    assert Until.parse("updates=5").met(Progress(10**9, 4, 10**9, 1e9, 1e9)) is None


def test_with_several_learners_each_has_its_own_end():
    """Whether all have reached it, only the run itself knows."""
    until = Until.parse("steps=100 updates=7 episodes=9")
    assert (until.goal.num_env_steps, until.goal.num_updates) == (100, 7)
    beyond = Progress(env_steps=200, updates=20, has_goal=True)
    assert until.met(beyond) is None
    beyond.reached_goal = "updates"
    assert until.met(beyond) == "updates=7"
    assert until.met(Progress(episodes=9, has_goal=True)) == "episodes=9"
    behind = Progress(updates=6, has_goal=True, versions={"fast": 6, "slow": 1})
    assert Until.parse("updates=10").share(behind) == 0.1
    assert Until.parse("return=3").goal is None
