"""What is shown in the end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.table import Table
from rich.text import Text

from benchmarks.compare.execute import DISTURBED_CORES, Run
from benchmarks.compare.presets import Benchmark, Preset

_WORDS: Final = {"settings", "over", "who", "levada runs", "beside", "target", "disturbed turns", "at least", "below"}
_LEFT_OUT_IF_EMPTY: Final = {"levada runs", "target"}
_PARTS: Final = ("environment", "inference", "training")
Rate = Callable[[Run], float | None]
_RATES: Final[dict[Literal["env steps", "gradient steps"], dict[str, Rate]]] = {
    "env steps": {
        "training": lambda run: run.training_steps_per_s,
        "whole process": lambda run: run.process_steps_per_s,
    },
    "gradient steps": {
        "training": lambda run: run.training_gradient_steps_per_s,
        "whole process": lambda run: (run.gradient_steps or 0) / run.process_s,
    },
}


@dataclass(frozen=True)
class Spread:
    """A median between the smallest and the largest value; infinite where a run did not get there."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Count a missing value as infinite."""
        numbers = [math.inf if value is None else value for value in values]
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    def text(self, digits: int = 0) -> str:
        """Write it as the tables have it.

        >>> Spread(2.0, 1.0, math.inf).text(), Spread(1500.0, 1500.0, 1500.0).text()
        ('2 (1 - never)', '1,500')
        """
        numbers = (self.median, self.low, self.high)
        median, low, high = (f"{x:,.{digits}f}" if math.isfinite(x) else "never" for x in numbers)
        return median if low == high else f"{median} ({low} - {high})"

    def divided_by(self, other: Spread) -> str:
        """The ratio of the medians, between the least and the largest ratio that any two runs have.

        >>> Spread(20.0, 10.0, 30.0).divided_by(Spread(4.0, 2.0, 5.0))
        '5.00 (2.00 - 15.00)'
        """
        if not (math.isfinite(self.median) and math.isfinite(other.median)):
            return "-"
        return Spread(self.median / other.median, self.low / other.high, self.high / other.low).text(2)


def throughput_table(runs: Sequence[Run], benchmark: Benchmark, presets: Sequence[Preset]) -> Table:
    """Steps/s, two rows for each preset and each form of levada; one where the peer's rate is quoted."""
    runs = [run for run in runs if run.part == "steps/s"]
    rows: list[dict[str, str]] = []
    for preset in presets:
        of = [run for run in runs if run.settings == preset.name]
        peers = [run for run in of if run.form is None]
        for form in preset.forms:
            levadas = [run for run in of if run.form == form.name]
            if not (levadas or form is preset.forms[0]):
                continue  # the peers alone: one row for each
            for over, rate in _RATES[benchmark.counts].items():
                if preset.quoted and over != "training":
                    continue
                target = (form.target_ratio or preset.target_ratio) if over == "training" else None
                has_name = levadas and len(preset.forms) > 1
                row = {"settings": preset.name, "levada runs": form.name if has_name else "", "over": over}
                rows.append(row | _compared(peers, levadas, rate, target, preset.quoted))
    used = [header for header in rows[0] if any(row[header] for row in rows) or header not in _LEFT_OUT_IF_EMPTY]
    title = f"{benchmark.env}: {benchmark.counts}/s with the peer's hyper-parameters, median (min - max)"
    table = _table(title, *used)
    for row in rows:
        table.add_row(*(row[header] for header in used))
    return table


def _compared(
    peers: Sequence[Run],
    levadas: Sequence[Run],
    rate: Rate,
    target: float | None,
    quoted: tuple[float, float] | None,
) -> dict[str, str]:
    """Both rates, their ratio, whether it is what it is meant to be, and which turns were disturbed."""
    peer, levada = (Spread.of(map(rate, of)) if of else None for of in (peers, levadas))
    if quoted is not None:  # compared with the best that is known of it
        peer = Spread(quoted[1], *quoted)
    assert peer is not None
    goal = ""
    if levada and target is not None:
        goal = f"{target:g}: {'met' if levada.median >= target * peer.median else 'not met'}"
    sides = (("peer", peers), ("levada", levadas))
    return {
        "peer": peer.text() + (", quoted" if quoted else ""),
        "levada": levada.text() if levada else "-",
        "levada / peer": levada.divided_by(peer) if levada else "-",
        "target": goal,
        "disturbed turns": "; ".join(f"{who} {which}" for who, of in sides if (which := _disturbed_turns(of))),
    }


def shares_table(runs: Sequence[Run], benchmark: Benchmark, presets: Sequence[Preset]) -> Table:
    """One form of levada beside another."""
    title = f"{benchmark.env}: levada beside itself, training {benchmark.counts}/s, median (min - max)"
    table = _table(title, "settings", "levada runs", "beside", "ratio", "target", "disturbed turns")
    rate = _RATES[benchmark.counts]["training"]
    for preset in presets:
        if (share := preset.share) is None:
            continue
        of = [run for run in runs if run.part == "steps/s" and run.settings == preset.name]
        both = [[run for run in of if run.form == form] for form in (share.form, share.of)]
        this, that = (Spread.of(map(rate, runs_of)) for runs_of in both)
        goal = f"{share.target:g}: {'met' if this.median >= share.target * that.median else 'not met'}"
        names = (f"{share.form}: {this.text()}", f"{share.of}: {that.text()}")
        table.add_row(preset.name, *names, this.divided_by(that), goal, _disturbed_turns([*both[0], *both[1]]))
    return table


def parts_table(runs: Sequence[Run], benchmark: Benchmark, presets: Sequence[Preset]) -> Table:
    """What levada's parts do alone with all cores, and the serial ceiling that follows from it."""
    title = f"{benchmark.env}: levada's parts alone, each with all cores, per second, median (min - max)"
    table = _table(title, "settings", *_PARTS, "passes", "serial ceiling", "disturbed turns")
    for preset in presets:
        parts = [run for run in runs if run.part == "parts" and run.settings == preset.name]
        rates = [Spread.of(run.own_words[part] for run in parts).text() for part in _PARTS]
        ceiling = _ceiling(parts, preset).text()
        table.add_row(preset.name, *rates, str(_num_passes(preset)), ceiling, _disturbed_turns(parts))
    return table


def efficiency_table(runs: Sequence[Run], benchmark: Benchmark, presets: Sequence[Preset]) -> Table:
    """Levada's share of the serial ceiling, and the memory of all processes of a run."""
    goal = benchmark.parts
    assert goal is not None
    title = f"{benchmark.env}: levada beside the serial ceiling of its parts, and memory, median (min - max)"
    headers = ("settings", "levada runs", "levada", "efficiency", "at least", "peer, MB", "levada, MB", "below")
    table = _table(title, *headers)
    for preset in presets:
        of = [run for run in runs if run.settings == preset.name]
        ceiling = _ceiling([run for run in of if run.part == "parts"], preset)
        peer_mb = _memory(run for run in of if run.part == "steps/s" and run.form is None)
        for form in preset.forms:
            levadas = [run for run in of if run.form == form.name]
            rate, memory_mb = Spread.of(run.training_steps_per_s for run in levadas), _memory(levadas)
            efficient = f"{goal.target_efficiency:g}: "
            efficient += "met" if rate.median >= goal.target_efficiency * ceiling.median else "not met"
            small = f"{goal.target_memory_mb:,.0f}: {'met' if memory_mb.high < goal.target_memory_mb else 'not met'}"
            shown = (rate.text(), rate.divided_by(ceiling), efficient, peer_mb.text(), memory_mb.text(), small)
            table.add_row(preset.name, form.name, *shown)
    return table


def serial_ceiling(rates: Mapping[str, float], num_passes: int) -> float:
    """Env steps/s if all cores did one part after the other, and nothing else.

    >>> serial_ceiling({"environment": 4_000.0, "inference": 4_000.0, "training": 8_000.0}, num_passes=4)
    1000.0
    """
    environment, inference, training = (rates[part] for part in _PARTS)
    return 1.0 / (1.0 / environment + 1.0 / inference + num_passes / training)


def _num_passes(preset: Preset) -> int:
    """How often levada learns from each step."""
    passes = preset.levada.get("num_epochs", 1)
    assert isinstance(passes, int)
    return passes


def _ceiling(parts: Iterable[Run], preset: Preset) -> Spread:
    return Spread.of(serial_ceiling(run.own_words, _num_passes(preset)) for run in parts)


def _memory(runs: Iterable[Run]) -> Spread:
    return Spread.of(run.memory_mb for run in runs)


def solve_table(runs: Sequence[Run], benchmark: Benchmark, target_return: int) -> Table:
    """Seconds to the target, one row for each contestant."""
    of_who = _by_who(run for run in runs if run.part == "solve")
    seconds = {who: Spread.of(run.solved_s for run in of) for who, of in of_who.items()}
    title = f"{benchmark.env}: seconds to a mean return of {target_return}, median (min - max)"
    table = _table(title, "who", "solved", "seconds", "environment steps", "levada / this", "disturbed turns")
    for who, of in of_who.items():
        has_ratio = who != "levada" and "levada" in seconds
        ratio = seconds["levada"].divided_by(seconds[who]) if has_ratio else ""
        steps = Spread.of(run.solved_env_steps for run in of)
        solved = f"{sum(run.solved_s is not None for run in of)} of {len(of)}"
        table.add_row(who, solved, seconds[who].text(1), steps.text(), ratio, _disturbed_turns(of))
    return table


def threads_table(runs: Sequence[Run], benchmark: Benchmark) -> Table:
    """Steps/s of training by the number of threads."""
    title = f"{benchmark.env}: training {benchmark.counts}/s by number of threads, median (min - max)"
    table = _table(title, "who", f"{benchmark.counts}/s", "CPU us/env step", "disturbed turns")
    rate_of = _RATES[benchmark.counts]["training"]
    for who, of in _by_who(runs).items():
        rate, cpu_us = Spread.of(map(rate_of, of)), Spread.of(run.cpu_us_per_step for run in of)
        table.add_row(who, rate.text(), cpu_us.text(), _disturbed_turns(of))
    return table


def disturbances(runs: Sequence[Run]) -> list[str]:
    """Which runs were disturbed, and by how much."""
    disturbed = [run for run in runs if run.disturbed]
    if not disturbed:
        return []
    lines = [f"{len(disturbed)} of {len(runs)} runs were disturbed: other processes took over {DISTURBED_CORES} cores."]
    for run in disturbed:
        settings = f" ({run.settings} settings, {run.form})" if run.form else ""
        lines.append(f"    {run.part}: {run.who}{settings}, turn {run.turn + 1}: {run.foreign_cores:.2f} cores")
    return lines


def _table(title: str, *headers: str) -> Table:
    table = Table(title=Text(title, "table.title"), title_justify="left")  # ":ant:" would be an emoji
    for header in headers:
        table.add_column(header, justify="left" if header in _WORDS else "right")
    return table


def _by_who(runs: Iterable[Run]) -> dict[str, list[Run]]:
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.who, []).append(run)
    return grouped


def _disturbed_turns(runs: Sequence[Run]) -> str:
    return " ".join(str(run.turn + 1) for run in runs if run.disturbed)
