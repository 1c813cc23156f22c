"""Comparison of runs: groups, returns, times to target, and what is said about runs that cannot be compared."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from support.runs import cli as cli_harness

import levada
from levada.comparison import ComparisonError
from levada.comparison.compare import Group
from levada.comparison.plot import draw
from levada.comparison.records import read_record
from levada.run.storage.config import RunConfig
from levada.run.summary import Summary
from levada.watch.messages import Rows
from levada.watch.tail import Tail


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

    def run(name, returns, *, seed=1, env="CartPole-v1", until="steps=1000", episodes=100, algorithm="ppo", **settings):
        path = tmp_path / name
        shutil.copytree(template, path)
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=RunConfig)
        values = {"until": until, "seed": seed, **settings}
        changed = {key: msgspec.structs.replace(config.settings[key], value=value) for key, value in values.items()}
        identity = msgspec.structs.replace(config.identity, seed=seed, env=env, algorithm=algorithm)
        config = msgspec.structs.replace(config, identity=identity, settings={**config.settings, **changed})
        (path / "config.json").write_bytes(msgspec.json.encode(config))
        lines = [
            {"step": 100 * n, "charts/wall_s": float(n), "charts/episodic_return": x, "charts/episodes": episodes * n}
            for n, x in enumerate(returns, 1)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        summary = Summary.from_json((path / "summary.json").read_bytes())
        new = msgspec.structs.replace(
            summary, seed=seed, env=env, steps_per_s=100.0 * seed, env_steps=100 * len(returns)
        )
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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"hidden_sizes": [64] * 14}, {"hidden_sizes": [64] * 13 + [32]}),
        ({"hidden_sizes": [64] * 29}, {"hidden_sizes": [64] * 14 + [32] + [64] * 14}),  # equal at both ends
        ({"algorithm_class": "/home/me/v1.py:Mine"}, {"algorithm_class": "/home/me/v2.py:Mine"}),
    ],
)
def test_runs_with_other_settings_are_another_group_however_long_these_are(make, first, second):
    rows = levada.compare([make("a", [1.0], **first), make("b", [2.0], **second)]).groups
    assert [row.num_runs for row in rows] == [1, 1]
    assert len({row.name for row in rows}) == 2
    assert max(len(row.name) for row in rows) < 70


def test_names_of_groups_have_what_differs_within_an_algorithm(make):
    runs = [make(f"ppo {rate}", [1.0], learning_rate=rate) for rate in (0.1, 0.2)]
    runs.append(make("dqn", [1.0], algorithm="dqn", learning_rate=0.3, hidden_sizes=[8]))
    assert [row.name for row in levada.compare(runs[1:]).groups] == ["ppo", "dqn"]
    assert [row.name for row in levada.compare(runs).groups] == [
        "ppo learning_rate=0.1",
        "ppo learning_rate=0.2",
        "dqn",
    ]


def test_a_name_that_is_given_may_be_that_of_other_runs(make):
    rows = levada.compare([f"ppo={make('a', [1.0])}", make("b", [2.0], seed=2)]).groups
    assert [row.name for row in rows] == ["ppo", "ppo #2"]


def test_directories_patterns_and_names_find_runs(make, tmp_path):
    for seed in range(3):
        make(f"base/{seed}", [1.0], seed=seed)
        make(f"wide {seed}", [2.0], seed=seed)
    found = levada.compare([tmp_path / "base", f"my name={tmp_path}/wide *"])
    assert {(row.name, row.num_runs, row.returns.value) for row in found.groups} == {
        ("ppo", 3, 1.0),
        ("my name", 3, 2.0),
    }


def test_a_pattern_of_paths_with_equals_signs_is_no_name(make, tmp_path, monkeypatch):
    for rate in (0.1, 0.2):
        make(f"lr={rate}/1", [1.0], learning_rate=rate)
    monkeypatch.chdir(tmp_path)
    for pattern in ("lr=*", "lr=*/1"):
        names = [row.name for row in levada.compare([pattern]).groups]
        assert names == ["ppo learning_rate=0.1", "ppo learning_rate=0.2"]
    assert [row.name for row in levada.compare(["slow=lr=0.1", "lr=lr=0.2/*"]).groups] == ["slow", "lr"]


def test_logs_beside_runs_are_no_runs(make, tmp_path):
    runs = [make("seed-1", [1.0], seed=1), make("seed-2", [2.0], seed=2)]
    logs = [tmp_path / "seed-1.log", tmp_path / "seed-2.log"]
    for log in logs:
        log.touch()
    assert [row.num_runs for row in levada.compare([*runs, *logs]).groups] == [2]
    with pytest.raises(ComparisonError, match=r"seed-1\.log: there is no run in it"):
        levada.compare(logs)


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
    with pytest.raises(ComparisonError, match="no run has a return at 50 env steps; the first one is at 100"):
        levada.compare(runs, at_steps=50)


def test_runs_that_ended_before_the_env_steps_are_said(make):
    runs = [make("a", [1.0, 2.0, 3.0], seed=1), make("b", [5.0], seed=2)]
    note = "1 run on CartPole-v1 ended before 250 env steps, from 100 on: the last return counts"
    assert note in levada.compare(runs, at_steps=250).notes
    assert not any("ended" in note for note in levada.compare(runs, at_steps=100).notes)


def test_runs_without_a_return_at_the_env_steps_are_left_out(make, tmp_path):
    early = [make(f"early {seed}", [1.0, 2.0], seed=seed, learning_rate=0.1) for seed in (1, 2)]
    late = [make("late 1", [8.0, 9.0], seed=1), make("late 2", [4.0, 9.0], seed=2)]
    for run in (*early[1:], *late):
        metrics = tmp_path / run / "metrics.jsonl"
        metrics.write_text(metrics.read_text().partition("\n")[2])
    found = levada.compare([*late, *early], at_steps=100)
    assert [(row.name, row.num_runs, row.returns.value) for row in found.groups] == [("ppo learning_rate=0.1", 1, 1.0)]
    told = [note for note in found.notes if note.endswith("has no return at 100 env steps")]
    assert len(told) == 3 and all(name in "".join(told) for name in ("early 2", "late 1", "late 2"))


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


@pytest.mark.parametrize(
    ("normalize", "words"),
    [
        ({"Breakout": (0.0, 1.0)}, "normalize has 'Breakout'; the runs are on CartPole-v1, Pong"),
        ({"Pong": (1.0, 1.0)}, r"normalize has \(1\.0, 1\.0\) for Pong, expected a lower and a higher number"),
        ({"Pong": 3}, "normalize has 3 for Pong, expected a lower and a higher number"),
        ({"Pong": "ab"}, "normalize has 'ab' for Pong, expected a lower and a higher number"),
        ([("Pong", 3)], r"normalize is \[\('Pong', 3\)\], expected a mapping"),
    ],
)
def test_mistakes_of_normalize_are_said(make, normalize, words):
    runs = [make("a", [1.0]), make("b", [2.0], env="Pong")]
    with pytest.raises(ComparisonError, match=words):
        levada.compare(runs, normalize=normalize)


def test_normalize_is_refused_for_one_environment(make):
    run = make("a", [1.0])
    with pytest.raises(ComparisonError, match=r"normalize has \(5\.0, 5\.0\) for CartPole-v1"):
        levada.compare([run], normalize={"CartPole-v1": (5.0, 5.0)})
    with pytest.raises(ComparisonError, match="all runs are on CartPole-v1; leave it out"):
        levada.compare([run], normalize={"CartPole-v1": (0.0, 5.0)})


def test_runs_whose_metrics_end_before_they_did_are_left_out(make, tmp_path):
    good, torn = make("good", [1.0] * 20), make("torn", [1.0] * 20, seed=2)
    almost = make("almost", [1.0] * 20, seed=3)
    for name, num_lines in (("torn", 17), ("almost", 19)):
        path = tmp_path / name / "metrics.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:num_lines]))
    found = levada.compare([good, torn, almost])
    assert found.groups[0].num_runs == 2
    assert any("torn has metrics of 1,700 of its 2,000 env steps: its metrics.jsonl is torn" in x for x in found.notes)


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
    make("linked", [1.0])
    (tmp_path / "linked/metrics.jsonl").unlink()
    (tmp_path / "linked/metrics.jsonl").symlink_to(tmp_path / "good/metrics.jsonl")
    (tmp_path / "failed" / "summary.json").unlink()
    (tmp_path / "failed" / "frames.bin").unlink()
    found = levada.compare([good, *(str(tmp_path / name) for name in ("failed", "torn", "bad", "empty", "linked"))])
    assert found.groups[0].num_runs == 1
    notes = "\n".join(found.notes)
    for words in (
        "failed has failed",
        "torn/config.json is torn",
        "bad has finished no episode",
        "linked/metrics.jsonl cannot be read",
        "empty has finished no episode",
    ):
        assert words in notes
    assert "has no interval" in notes


DAMAGED = (
    "x", '{"step": 150', "[1]", "[" * 5_000, "x" * (1 << 20), "\xff", '{"step": "150"}', '{"charts/episodic_return": 7.0}',
    '{"step": 150, "charts/episodic_return": "7"}', '{"step": 150, "other": []}', '{"step": -5, "charts/episodic_return": 7.0}',
)  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_lines_are_left_out_the_same_as_by_the_page(make, tmp_path, line):
    make("a", [1.0, 2.0])
    metrics = tmp_path / "a/metrics.jsonl"
    first, second = metrics.read_bytes().splitlines(keepends=True)
    damaged = line.encode("latin-1") + b"\n"
    metrics.write_bytes(first + damaged + second + damaged + b'{"step": 300, "charts/episodic_return": 3.0}')
    curve = read_record(tmp_path / "a").curve
    assert (curve.env_steps.tolist(), curve.values.tolist()) == ([100.0, 200.0], [1.0, 2.0])
    tail = Tail(tmp_path / "a", 0)
    [rows] = [message for message in tail.messages() if isinstance(message, Rows)]
    tail.close()
    assert rows.columns["step"] == curve.env_steps.tolist()


def test_rows_whose_step_goes_back_take_the_place_of_those_beyond(make, tmp_path):
    make("a", [1.0, 2.0, 3.0, 4.0])
    with (tmp_path / "a/metrics.jsonl").open("a") as file:
        for step in (200, 200, 250):
            file.write(f'{{"step": {step}, "charts/episodic_return": 9.0}}\n')
    curve = read_record(tmp_path / "a").curve
    assert curve.env_steps.tolist() == [100.0, 200.0, 200.0, 200.0, 250.0]
    assert curve.values.tolist() == [1.0, 2.0, 9.0, 9.0, 9.0]


def test_repeated_seeds_are_said(make):
    found = levada.compare([make("a", [1.0], seed=1), make("b", [2.0], seed=1)])
    assert "ppo: 1 run on CartPole-v1 repeats a seed, and may not be independent" in found.notes
    found = levada.compare([make(name, [1.0]) for name in ("c", "d", "e")])
    assert "ppo: 2 runs on CartPole-v1 repeat a seed, and may not be independent" in found.notes


def test_a_run_that_is_named_twice_counts_once(make):
    run = make("a", [1.0])
    found = levada.compare([run, run, f"{run}/"])
    assert (found.groups[0].num_runs, len(found.notes)) == (1, 1)  # that there is no interval


def test_a_run_that_is_given_for_two_groups_counts_in_the_first(make, monkeypatch, tmp_path):
    make("runs/1", [1.0], seed=1)
    make("runs/2", [2.0], seed=2)
    monkeypatch.chdir(tmp_path)
    note = "runs/1 is given for several groups, and counts in the first of them alone"
    found = levada.compare(["a=runs/1", "b=runs/1"])
    assert ([(row.name, row.num_runs) for row in found.groups], note in found.notes) == ([("a", 1)], True)
    found = levada.compare(["a=runs/1", "runs"])
    assert ([(row.name, row.num_runs) for row in found.groups], note in found.notes) == ([("a", 1), ("ppo", 1)], True)


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


# ---- as a picture


def test_long_names_of_groups_leave_room_for_the_curves(make, tmp_path):
    long = " ".join(f"setting_{number}=0.5" for number in range(40))
    groups = [Group(long, (read_record(Path(make(name, [1.0, 2.0]))),)) for name in "ab"]
    draw(groups, tmp_path / "curves.svg")  # it would warn if there were no room
    picture = ElementTree.parse(tmp_path / "curves.svg").getroot()
    assert float(picture.attrib["width"].removesuffix("pt")) < 500
    assert "setting_39=0.5" in (tmp_path / "curves.svg").read_text()


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
