"""Comparison of runs: groups, returns, times to target, and what is said about runs that cannot be compared."""

import json
import shutil
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from support.runs import cli as cli_harness

import levada
from levada.comparison import ComparisonError
from levada.run.storage.config import RunConfig
from levada.run.summary import Summary


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    out = tmp_path_factory.mktemp("template") / "run"
    levada.train(
        "ppo", "CartPole-v1", until="updates=2", out=out, display="quiet", log="none", **cli_harness.TINY_FIELDS
    )
    return out


@pytest.fixture
def make(template, tmp_path):
    """Make a run with these returns, one for every 100 env steps and second."""

    def run(name, returns, *, seed=1, env="CartPole-v1", until="steps=1000", episodes=100, **settings):
        path = tmp_path / name
        shutil.copytree(template, path)
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=RunConfig)
        values = {"until": until, "seed": seed, **settings}
        changed = {key: msgspec.structs.replace(config.settings[key], value=value) for key, value in values.items()}
        identity = msgspec.structs.replace(config.identity, seed=seed, env=env)
        config = msgspec.structs.replace(config, identity=identity, settings={**config.settings, **changed})
        (path / "config.json").write_bytes(msgspec.json.encode(config))
        lines = [
            {"step": 100 * n, "charts/wall_s": float(n), "charts/episodic_return": x, "charts/episodes": episodes * n}
            for n, x in enumerate(returns, 1)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        summary = Summary.from_json((path / "summary.json").read_bytes())
        new = msgspec.structs.replace(summary, seed=seed, env=env, steps_per_s=100.0 * seed)
        (path / "summary.json").write_bytes(new.to_json())
        return str(path)

    return run


def test_runs_that_differ_in_the_seed_are_a_group(make):
    finals = {0.001: [10.0, 20.0, 40.0], 0.01: [5.0, 6.0, 7.0]}
    runs = [
        make(f"{rate}-{seed}", [1.0, final], seed=seed, learning_rate=rate)
        for rate, several in finals.items()
        for seed, final in enumerate(several)
    ]
    found = levada.compare(runs)
    assert [row.name for row in found.groups] == ["ppo learning_rate=0.001", "ppo learning_rate=0.01"]
    assert [row.num_runs for row in found.groups] == [3, 3]
    assert [row.returns.value for row in found.groups] == [
        pytest.approx(np.mean(several)) for several in finals.values()
    ]
    assert [row.better and row.better.value for row in found.groups] == [None, 0.0]
    assert [row.steps_per_s for row in found.groups] == [100.0, 100.0]
    assert found.notes == ["intervals from fewer than 5 runs are wide: more seeds narrow them"]


def test_directories_patterns_and_names_find_runs(make, tmp_path):
    for seed in range(3):
        make(f"base/{seed}", [1.0], seed=seed)
        make(f"wide {seed}", [2.0], seed=seed)
    found = levada.compare([tmp_path / "base", f"my name={tmp_path}/wide *"])
    assert {(row.name, row.num_runs, row.returns.value) for row in found.groups} == {
        ("ppo", 3, 1.0),
        ("my name", 3, 2.0),
    }


def test_time_to_target_is_the_first_time_at_which_100_episodes_reach_it(make):
    runs = [
        make("a", [10.0, 30.0, 20.0, 30.0], seed=1),
        make("b", [10.0, 20.0, 20.0, 25.0], seed=2),
        make("c", [10.0, 20.0, 20.0, 20.0], seed=3),
        make("early", [99.0, 20.0, 20.0, 30.0], seed=4, episodes=50),  # the first is the mean of 50 episodes
    ]
    [row] = levada.compare(runs, target=25.0).groups
    assert (row.num_solved, row.solved_at_s, row.solved_at_steps) == (3, 4.0, 400.0)
    [row] = levada.compare(runs, target=26.0).groups
    assert (row.num_solved, row.solved_at_s) == (2, None)  # the median run did not
    assert levada.compare(runs[:1], target=25.0).groups[0].solved_at_s == 2.0


def test_the_target_of_the_runs_is_used_if_it_is_the_same(make):
    runs = [make("a", [25.0], seed=1, until="return=20"), make("b", [15.0], seed=2, until="return=20")]
    assert levada.compare(runs).target == 20.0
    assert levada.compare([*runs, make("c", [15.0], seed=3, until="return=30")]).target is None


def test_returns_at_equal_env_steps(make):
    runs = [make("a", [1.0, 2.0, 3.0], seed=1), make("b", [5.0], seed=2)]
    found = levada.compare(runs)
    assert any("ended after 100 to 300 env steps; --at-steps" in note for note in found.notes)
    assert levada.compare(runs, at_steps=250).groups[0].returns.value == pytest.approx((2.0 + 5.0) / 2)
    assert levada.compare(runs, at_steps=100).groups[0].returns.value == pytest.approx((1.0 + 5.0) / 2)
    with pytest.raises(ComparisonError, match="no run of ppo has a return on CartPole-v1 at 50 env steps"):
        levada.compare(runs, at_steps=50)


def test_several_environments_are_normalized(make):
    scores = {
        ("CartPole-v1", 0.1): [0.0, 50.0],
        ("CartPole-v1", 0.2): [100.0, 50.0],
        ("Pong", 0.1): [-20.0, 0.0],
        ("Pong", 0.2): [20.0, 0.0],
    }
    runs = [
        make(f"{env}-{rate}-{seed}", [final], seed=seed, env=env, learning_rate=rate)
        for (env, rate), several in scores.items()
        for seed, final in enumerate(several)
    ]
    found = levada.compare(runs)
    rows = {(row.name, row.env): row for row in found.groups}
    assert rows["ppo learning_rate=0.1", "all"].returns.value == pytest.approx(0.25)
    assert rows["ppo learning_rate=0.2", "all"].returns.value == pytest.approx(0.75)
    assert any("0 and 1 are CartPole-v1 0 and 100; Pong -20 and 20" in note for note in found.notes)
    given = levada.compare(runs, normalize={"CartPole-v1": (0.0, 500.0), "Pong": (-20.0, 20.0)})
    assert {row.name: row.returns.value for row in given.groups if row.env == "all"}[
        "ppo learning_rate=0.2"
    ] == pytest.approx(np.mean([0.1, 0.2, 0.5, 1.0][1:3]), rel=0.01)
    with pytest.raises(ComparisonError, match="normalize has 'Breakout'; the runs are on CartPole-v1, Pong"):
        levada.compare(runs, normalize={"Breakout": (0.0, 1.0)})
    with pytest.raises(ComparisonError, match=r"normalize has 1\.0 and 1\.0 for Pong; expected a lower"):
        levada.compare(runs, normalize={"Pong": (1.0, 1.0)})


def test_runs_that_cannot_be_compared_are_said(make, tmp_path):
    good = make("good", [1.0])
    for name, file, data in (
        ("failed", "error.txt", b"x"),
        ("torn", "config.json", b"{"),
        ("bad", "metrics.jsonl", b"x\n"),
        ("empty", "metrics.jsonl", b""),
    ):
        make(name, [1.0], seed=2)
        (tmp_path / name / file).write_bytes(data)
    (tmp_path / "failed" / "summary.json").unlink()
    (tmp_path / "failed" / "frames.bin").unlink()
    found = levada.compare([good, *(str(tmp_path / name) for name in ("failed", "torn", "bad", "empty"))])
    assert found.groups[0].num_runs == 1
    notes = "\n".join(found.notes)
    for words in (
        "failed has failed",
        "torn/config.json is torn",
        "bad/metrics.jsonl cannot be read",
        "empty has finished no episode",
    ):
        assert words in notes
    assert "has no interval" in notes


def test_repeated_seeds_are_said(make):
    found = levada.compare([make("a", [1.0], seed=1), make("b", [2.0], seed=1)])
    assert "ppo: 1 run on CartPole-v1 repeat a seed, and may not be independent" in found.notes


def test_a_run_that_is_named_twice_counts_once(make):
    run = make("a", [1.0])
    assert levada.compare([run, run, f"{run}/"]).groups[0].num_runs == 1


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([], "no runs are given"),
        (["nowhere"], "there is no such directory"),
        (["."], "there is no run in it"),
        (["s3://bucket/run"], "runs at URLs cannot be compared"),
    ],
)
def test_mistakes_are_said(tmp_path, monkeypatch, runs, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ComparisonError, match=words):
        levada.compare(runs)


# ---- in a notebook


def words(html):
    return " ".join(" ".join(ElementTree.fromstring(html).itertext()).split())


def test_a_notebook_shows_the_table_the_curves_of_each_environment_and_the_notes(make):
    runs = [
        make(f"{env}-{seed}", [1.0, 5.0, 10.0 + seed], env=env, seed=seed)
        for env in ("CartPole-v1", "Acrobot-v1")
        for seed in (1, 2)
    ]
    found = levada.compare([*runs, make("alone", [3.0, 2.0], env="CartPole-v1", learning_rate=0.5)], target=8.0)
    html = found._repr_html_()
    assert html.count("<svg") == 2
    assert html.count("fill-opacity") == 2  # a single run has no interval
    assert html.count("stroke-dasharray") == 2
    shown = words(html)
    assert "group env runs return 95 % interval better than the first reached 8 seconds env steps steps/s" in shown
    assert "CartPole-v1 by env steps" in shown
    assert "(2 runs)" in shown and "(1 run)" in shown
    assert all(note in shown for note in found.notes)


def test_names_of_groups_and_environments_are_escaped_in_a_notebook(make):
    hostile = "<img src onerror>"
    found = levada.compare([f"{hostile}={make('a', [1.0, 2.0], env=hostile)}"])
    html = found._repr_html_()
    assert "<img" not in html
    assert words(html).count(hostile) >= 2


def test_the_curves_are_not_a_part_of_the_json(make):
    found = levada.compare([make("a", [1.0, 2.0])])
    assert set(json.loads(found.to_json())) == {"groups", "notes", "target", "at_steps"}
    assert "Record" not in repr(found)
