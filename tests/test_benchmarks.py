"""Parts of the benchmarks: settings that levada accepts, and tables that show what was measured."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from benchmarks._scaling.nodes import tables
from benchmarks.compare.jobs import BENCHMARKS, Plan, make_jobs
from levada.algorithms.registry import find_algorithm


@pytest.mark.parametrize("name", BENCHMARKS)
def test_levada_accepts_the_settings_of_its_peers(name: str) -> None:
    benchmark = BENCHMARKS[name]
    peers = tuple(preset.peer for preset in benchmark.presets)
    plan = Plan(name=name, peers=peers, runs=1, seed=0, quick=True, only_peers=False, compare_threads=False, json=None)
    jobs = [job for job in make_jobs(plan) if job.form is not None]
    assert {job.form.name for job in jobs if job.form} == {form.name for p in benchmark.presets for form in p.forms}
    for job in jobs:
        find_algorithm(job.algorithm)(**job.levada_fields)


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
