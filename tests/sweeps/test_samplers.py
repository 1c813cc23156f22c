"""Samplers: a sampler made anew from records goes on as the one before. The median rule."""

import pytest

from levada.sweeps import samplers
from levada.sweeps.errors import SweepError
from levada.sweeps.samplers import Listed, Median, Tpe, shown
from levada.sweeps.space import parse_parameter

SPACE = [parse_parameter(text) for text in ("rate=log:1e-4:1", "epochs=int:1:9", "kind=a,b,c")]


def value_of(settings):
    return float(settings["rate"]) + int(settings["epochs"]) * (settings["kind"] == "b")


def played(sampler, numbers, recorded=()):
    """Play trials one after another; every fourth fails, every fifth is pruned."""
    found = list(recorded)
    for number, settings in enumerate(recorded, 1):
        sampler.begun(number, settings)
        tell(sampler, number, settings)
    for number in numbers:
        found.append(sampler.suggest(number))
        tell(sampler, number, found[-1])
    return found


def tell(sampler, number, settings):
    value = value_of(settings)
    if number % 4 == 0:
        sampler.tell(number, "failed", None, [])
    elif number % 5 == 0:
        sampler.tell(number, "pruned", value / 2, [value / 3, value / 2])
    else:
        sampler.tell(number, "finished", value, [value / 2, value])


@pytest.mark.parametrize("num_recorded", [3, 11, 17])
def test_tpe_goes_on_from_records(num_recorded):
    first = played(Tpe(SPACE, 20, is_minimized=False), range(1, 21))
    again = played(Tpe(SPACE, 20, is_minimized=False), range(num_recorded + 1, 21), first[:num_recorded])
    assert again == first
    assert len({tuple(settings.items()) for settings in first}) == 20


def test_tpe_draws_where_good_trials_were():
    best = [
        sorted(map(value_of, played(Tpe(SPACE, 40, is_minimized=is_minimized), range(1, 41))[20:]))
        for is_minimized in (0, 1)
    ]
    assert best[0][10] > 4.0 > 0.5 > best[1][10]


def test_a_trial_that_goes_on_is_not_repeated():
    sampler = Tpe(SPACE, 20, is_minimized=False)
    played(sampler, range(1, 13))
    assert sampler.suggest(13) != sampler.suggest(14)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rate": "1e-3", "epochs": "3"},
        {"rate": "2", "epochs": "3", "kind": "a"},
        {"rate": "x", "epochs": "3", "kind": "a"},
    ],
)
def test_records_of_another_sweep(settings):
    with pytest.raises(SweepError, match="outside of the ranges of this sweep"):
        Tpe(SPACE, 20, is_minimized=False).begun(1, settings)
    with pytest.raises(SweepError, match=r"trial 1 was recorded with .*, expected rate="):
        Listed.random(SPACE, 3).begun(1, settings)


def test_fewer_random_trials_are_the_first_of_more():
    few, more = Listed.random(SPACE, 3), Listed.random(SPACE, 9)
    assert [few.suggest(number) for number in (1, 2, 3)] == [more.suggest(number) for number in (1, 2, 3)]
    assert more.num_trials == 9


@pytest.mark.parametrize("is_minimized", [False, True])
def test_the_median_rule(is_minimized):
    sign = -1.0 if is_minimized else 1.0
    median = Median(is_minimized=is_minimized)
    bad = [sign * value for value in (1.0, 1.0, 1.0, 1.0)]
    for level in (10.0, 20.0, 30.0, 40.0):
        median.add(sign * level, [sign * level] * 9)
        assert not median.is_pruned(bad)  # of fewer than five trials
    median.add(sign * 50.0, [sign * 50.0] * 9)
    assert [median.is_pruned(bad[:num]) for num in (1, 2, 3, 4)] == [False, False, True, True]
    assert not median.is_pruned([sign * 31.0] * 4)
    assert not median.is_pruned([sign * value for value in (31.0, 1.0, 1.0, 1.0)])  # its best value counts


def test_without_optuna_a_command_installs_it(monkeypatch):
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    with pytest.raises(SweepError, match=r"--search tpe needs optuna: pip install 'levada\[sweep\]'"):
        Tpe(SPACE, 3, is_minimized=False)
    with pytest.raises(SweepError, match="--prune needs optuna"):
        Median(is_minimized=False)


def test_settings_are_shown_short():
    assert shown({"a": "0.000123456789", "b": "a long word"}) == "a=0.0001235 b=a long word"
