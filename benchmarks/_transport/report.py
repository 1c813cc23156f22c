"""The tables, the targets, and the same as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from benchmarks._transport.measure import BYTE, IN_PLACE, ONE_COPY, OURS, Cell, Plan
from benchmarks._transport.payloads import LARGE, SMALL
from benchmarks._transport.programs import ENVIRONMENT, MEMCPY
from benchmarks.compare.environments import pins
from benchmarks.compare.tables import Spread

_FASTER_THAN_PEERS: Final = 3.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """How much faster one cell is to be than another."""

    ours: str
    other: str
    payload: str
    at_least: float
    times: Spread

    @property
    def is_met(self) -> bool:
        """By the median."""
        return self.times.median >= self.at_least

    @property
    def met(self) -> str:
        """In words."""
        return "met" if self.is_met else "not met"

    def __str__(self) -> str:
        what = f"{self.payload}: {self.ours} at {self.times.text(2)} times the rate of {self.other}"
        return f"{what}, at least {self.at_least:g}: {self.met}"


def targets(cells: Sequence[Cell]) -> list[Target]:
    """All of them."""
    at = {(cell.payload, cell.transport): cell for cell in cells}

    def target(payload: str, ours: str, other: str, at_least: float) -> Target:
        times = at[payload, ours].times_faster_than(at[payload, other])
        return Target(ours=ours, other=other, payload=payload, at_least=at_least, times=times)

    found = [target(payload, IN_PLACE, MEMCPY, 1.0) for payload in (SMALL, LARGE)]
    found.append(target(LARGE, ONE_COPY, MEMCPY, 0.5))
    for payload, ours in at:
        if ours in OURS:
            peers = [name for where, name in at if where == payload and name not in (*OURS, MEMCPY, BYTE)]
            found += [target(payload, ours, peer, _FASTER_THAN_PEERS) for peer in peers]
    return found


def tables(cells: Sequence[Cell]) -> list[Table]:
    """One for each payload."""
    found = targets(cells)
    return [
        _table([cell for cell in cells if cell.payload == payload], [t for t in found if t.payload == payload])
        for payload in dict.fromkeys(cell.payload for cell in cells)
    ]


def _table(cells: Sequence[Cell], found: Sequence[Target]) -> Table:
    memcpy = next(cell for cell in cells if cell.transport == MEMCPY)
    ours = [cell.transport for cell in cells if cell.transport in OURS]
    size = f"{memcpy.num_bytes / 1e6:.1f} MB" if memcpy.num_bytes > 1e6 else f"{memcpy.num_bytes / 1e3:.1f} KB"
    table = Table(title=f"{memcpy.payload}, {size}, median (min - max)", title_justify="left")
    table.add_column("transport")
    for header in ("us", "GB/s", "of memcpy", *(f"{name}:\ntimes faster" for name in ours)):
        table.add_column(header, justify="right")
    for cell in cells:
        if cell.transport == BYTE:
            table.add_row(cell.transport, cell.microseconds.text(1))
            continue
        ratios = []
        for name in ours:
            target = next((t for t in found if (t.ours, t.other) == (name, cell.transport)), None)
            ratios.append("" if target is None else f"{target.times.text(1)}, {target.met}")
        digits = 0 if cell.microseconds.median >= 100 else 1
        share = f"{100 * cell.times_faster_than(memcpy).median:.1f} %"
        table.add_row(cell.transport, cell.microseconds.text(digits), f"{cell.gigabytes_per_s:.2f}", share, *ratios)
    return table


def as_json(cells: Sequence[Cell], plan: Plan) -> str:
    """One object."""
    versions = {name: importlib.metadata.version(name) for name in ("levada", "numpy", "msgspec")}
    report = {
        "benchmark": "transport",
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "plan": dataclasses.asdict(plan),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
        "versions": {"levada": versions, "peers": pins(ENVIRONMENT)},
        "cells": [
            {
                "transport": cell.transport,
                "payload": cell.payload,
                "num_bytes": cell.num_bytes,
                "gigabytes_per_s": cell.gigabytes_per_s,
                "median_s_of_turns": cell.of_turns,
                "num_items_of_turns": [len(turn) for turn in cell.seconds],
            }
            for cell in cells
        ],
        "targets": [{**dataclasses.asdict(target), "is_met": target.is_met} for target in targets(cells)],
    }
    return json.dumps(report, indent=1)
