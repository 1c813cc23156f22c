"""Parts of the benchmarks: settings that levada accepts, and tables that show what was measured."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from benchmarks import growth, presets
from benchmarks._growth.axis import Curve, Side, curves, take_turns
from benchmarks._scaling.nodes import tables
from benchmarks.compare.jobs import BENCHMARKS, Job, Plan, make_jobs
from benchmarks.compare.processes import started
from benchmarks.compare.run import parse
from benchmarks.compare.sides import LevadaSide
from levada.algorithms.registry import find_algorithm


def all_jobs(name: str) -> list[Job]:
    benchmark = BENCHMARKS[name]
    peers = tuple(preset.peer for preset in benchmark.presets)
    settings = tuple(preset.name for preset in benchmark.presets)
    plan = Plan(
        name=name, peers=peers, settings=settings, runs=1, seed=0, quick=True, only_peers=False, compare_threads=False,
        json=None,
    )  # fmt: skip
    return [*make_jobs(plan)]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_levada_accepts_the_settings_of_its_peers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.compare.jobs.has_bfloat16", lambda: True)
    jobs = [job for job in all_jobs(name) if job.form is not None]
    forms = {form.name for preset in BENCHMARKS[name].presets for form in preset.forms}
    assert {job.form.name for job in jobs if job.form} == forms
    for job in jobs:
        find_algorithm(job.algorithm)(**job.levada_fields)


@pytest.mark.parametrize("has_it", [False, True])
def test_bfloat16_is_left_out_where_the_processor_emulates_it(has_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.compare.jobs.has_bfloat16", lambda: has_it)
    forms = {job.form.name for job in all_jobs("mappo-spread") if job.form}
    assert forms == {"2 workers", "inline", *(["2 workers, bfloat16", "inline, bfloat16"] if has_it else [])}


def test_levada_in_jax_is_kept_to_one_core_where_its_peer_is() -> None:
    jobs = [job for job in all_jobs("jax-cartpole") if job.is_levada and job.form is not None]
    assert {(job.form.name, job.num_cores) for job in jobs if job.form} == {("inline", 1), ("2 workers", None)}
    assert all(job.num_cores is None for job in all_jobs("ppo-cartpole"))


def test_levada_in_jax_is_also_started_without_kept_code(tmp_path: Path) -> None:
    jobs = [job for job in all_jobs("jax-cartpole") if job.is_levada and job.part == "solve"]
    assert [job.is_cold for job in jobs] == [False, True]
    assert jobs[0].who != jobs[1].who
    for name in ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"):
        caches = [LevadaSide().command(job, 0, tmp_path)[1].get(name) for job in jobs]
        assert caches == [None, str(tmp_path / "cache")]
    assert not any(job.is_cold for job in all_jobs("ppo-cartpole"))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system keeps no process to a core")
@pytest.mark.parametrize("num_cores", [None, 1])
def test_a_process_is_kept_to_the_first_cores(num_cores: int | None, tmp_path: Path) -> None:
    before, told = os.sched_getaffinity(0), tmp_path / "out"
    command = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    with told.open("wb") as out, started(command, {}, out, out, num_cores=num_cores) as process:
        assert process.ended_within(60)
    assert json.loads(told.read_text()) == sorted(before)[:num_cores]
    assert os.sched_getaffinity(0) == before


def test_settings_are_chosen_by_their_names() -> None:
    plan = parse(["mappo-spread", "--settings", "BenchMARL, MAPPO's paper"])
    assert [preset.name for preset in plan.presets] == ["BenchMARL, MAPPO's paper"]
    assert parse(["mappo-spread"]).presets == BENCHMARKS["mappo-spread"].presets
    with pytest.raises(SystemExit):
        parse(["mappo-spread", "--settings", "paper"])


def test_shares_are_of_forms_that_there_are() -> None:
    for benchmark in BENCHMARKS.values():
        for preset in benchmark.presets:
            forms = {form.name for form in preset.forms}
            assert preset.share is None or {preset.share.form, preset.share.of} <= forms


def shown(found: Mapping[tuple[str, int], list[dict[str, float]]]) -> list[str]:
    console = Console(width=200, file=io.StringIO(), record=True)
    for table in tables(found, [1, 8]):
        console.print(table)
    return console.export_text().splitlines()


def told(rate: float, **more: float) -> dict[str, float]:
    return {"env_steps_per_s": rate, "process_cores": 0.1, "family_cores": 1.0, "foreign_cores": 0.0, **more}


def test_nodes_are_compared_with_one_node() -> None:
    found = {
        ("levada", 1): [told(100.0, idle=0.25)] * 3,
        ("levada", 8): [told(700.0, idle=0.25), told(750.0, idle=0.5), told(800.0, idle=0.25)],
        ("RLlib", 1): [told(50.0)] * 3,
        ("RLlib", 8): [told(250.0)] * 3,
    }
    lines = shown(found)
    assert any("8 " in line and "750 (700 - 800)" in line and "7.50 (7.00 - 8.00)" in line for line in lines)
    assert any("250" in line and "3.00 (2.80 - 3.20)" in line for line in lines)
    assert sum("samplers idle" in line for line in lines) == 1
    assert not any("bytes/step through the hub" in line for line in lines)


def test_counters_of_the_transport_are_shown_if_there_are_any() -> None:
    counters = {"bytes_per_step": 12.0}
    found = {(name, count): [told(10.0 * count, **counters)] for name in ("levada", "RLlib") for count in (1, 8)}
    assert any("bytes/step through the hub" in line for line in shown(found))


def test_a_window_begins_after_the_warm_up_and_ends_with_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from benchmarks._scaling import asleep

    clock = iter(range(100))
    monkeypatch.setattr(asleep.time, "perf_counter", lambda: float(next(clock)))
    begin, end = asleep.measure(iter(range(40, 4000, 40)), warm_s=2.0, seconds=5.0, look=lambda: "seen")
    assert (begin.env_steps, end.env_steps, begin.seen) == (120, 320, "seen")
    assert begin.rates_until(end)["env_steps_per_s"] == 40.0


def test_the_growth_of_each_axis_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = tmp_path / "growth.svg"
    assert growth.main(["--quick", "--svg", str(drawing)]) == 0
    printed = capsys.readouterr().out
    for name in growth.AXES:
        assert f"{name}: costs over the" in printed
    assert {each.text for each in ElementTree.parse(drawing).iter()} >= growth.AXES.keys()


def test_growth_is_the_largest_ratio_to_any_smaller_size() -> None:
    costs = {1: (8.0, 4.0), 10: (2.0, 1.0), 100: (3.0, 1.0)}
    sides = [Side(size, lambda own=own: {"us": own[0], "alone": own[1]}) for size, own in costs.items()]  # type: ignore[misc]
    turns = take_turns(sides, 3)
    [plain, from_ten, limited] = curves([Curve("us"), Curve("us", flat_from=100), Curve("us", "alone")], turns)
    assert ([point.growth for point in plain.points], plain.is_flat) == ([1.0, 0.25, 1.5], False)
    assert from_ten.is_flat
    assert ([point.to_limit for point in limited.points], limited.growth) == ([2.0, 2.0, 3.0], 1.5)


def test_presets_have_a_row_once_they_are_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "ppo:FrozenLake8x8-v1"
    short = presets.Run(name, tmp_path / "ppo-FrozenLake8x8-v1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "NUM_ENV_STEPS", {name: 4096})
        assert not short.summaries()
        assert short.train("1", 1) == 0
        assert presets.main([name, "--no-train", "--out", str(tmp_path)]) == 0
    assert "4,096" in capsys.readouterr().out
    assert not short.summaries(), "the run is shorter than the preset's"
    with pytest.raises(SystemExit):
        presets.main(["ppo:Nothing-v0"])
