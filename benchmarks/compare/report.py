"""Every run as JSON, and on what it was made."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.compare.environments import pins
from benchmarks.compare.execute import Run
from benchmarks.compare.jobs import Plan


def as_json(runs: Sequence[Run], plan: Plan) -> str:
    """One object."""
    versions: dict[str, object] = {peer: pins(peer) for peer in plan.peers_to_run}
    if not plan.only_peers:
        versions["levada"] = dict(_installed("levada", "torch", "gymnasium", "numpy", "ray"))
    report = {
        "benchmark": plan.name,
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "quick": plan.quick,
        "target_return": plan.target_return if plan.has_solve else None,
        "machine": {"cores": os.cpu_count(), "processor": _processor(), "python": platform.python_version()},
        "versions": versions,
        "threads": {preset.name: preset.threads for preset in plan.presets},
        "quoted": {preset.name: preset.quoted for preset in plan.presets if preset.quoted},
        "target_ratios": {preset.name: preset.target_ratio for preset in plan.presets},
        "runs": [{**dataclasses.asdict(run), "disturbed": run.disturbed} for run in runs],
    }
    return json.dumps(report, indent=1)


def _installed(*names: str) -> Iterator[tuple[str, str]]:
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
