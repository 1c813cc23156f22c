"""Metrics of a run, under the names known from CleanRL.

If results do not depend on timing, neither do these at any update: they describe the training up to it. Metrics marked with *
are measured (times, rates, and the current fill of queues); `is_measured` recognizes their names.

| name | meaning |
|---|---|
| `charts/episodic_return` | mean return of the last 100 finished episodes; of several policies that learn, the lowest |
| `charts/episodic_length` | mean length of the same episodes, in env steps |
| `charts/unshaped_return` | mean return of the same episodes as the environment reports it, if it does for each of them |
| `charts/SPS` * | env steps per second since the start-up |
| `charts/updates` | updates of the policy |
| `charts/episodes` | finished episodes |
| `charts/wall_s` * | seconds since the run started |
| `losses/...` | metrics reported by the learner, under its own names |
| `lag/<channel>/mean`, `lag/<channel>/max` | updates between making an item and learning from it, over the whole run |
| `queue/<channel>/fill` * | items that wait in the channel, as a fraction of its tickets |
| `replay/<name>/fill` | entries held at the last draw, as a fraction of the capacity |
| `replay/<name>/reuse` | samples per insert at the last draw, over the whole run |
| `averaging/...` | metrics of a round of groups (DiLoCo) |
| `eval/return`, `eval/return_std`, `eval/length` | mean and standard deviation of the returns of an evaluation, and mean length |
| `eval/version`, `eval/env_steps` | updates and env steps of the evaluated policy |
| `node/<name>/busy` * | fraction of the wall time in which a node works |

Where several policies act in one environment, metrics of one of them have its name in front: `ppo/charts/episodic_return`,
`ppo/charts/episodic_length`, `ppo/charts/updates`, `ppo/losses/...`. Those of nodes in a scope have that of the scope.

The step of every metric is the number of env steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from levada.flow.events import Statistics
from levada.run.monitor import Monitor
from levada.run.summary import lags

_MEASURED: Final = re.compile(r"charts/(SPS|wall_s)|queue/.+/fill|node/.+/busy")


def is_measured(name: str) -> bool:
    """Whether a metric may differ between two runs that learn bitwise the same.

    >>> is_measured("charts/SPS"), is_measured("charts/episodic_return")
    (True, False)
    """
    return _MEASURED.fullmatch(name) is not None


def collect(
    monitor: Monitor, statistics: Statistics, reported: Mapping[str, float], *, is_end: bool = False
) -> dict[str, float]:
    """Collect the current metrics; unknown ones are skipped. Results of evaluations are in them once; at the end of the run, also
    those that do not count yet.
    """
    charts = {
        "charts/episodic_return": monitor.return_mean_100,
        "charts/episodic_length": monitor.length_mean_100,
        "charts/unshaped_return": monitor.unshaped_return_mean_100,
        "charts/SPS": monitor.steps_per_s,
        "charts/updates": monitor.updates,
        "charts/episodes": monitor.episodes,
        "charts/wall_s": monitor.elapsed_s,
    }
    values = {name: float(value) for name, value in charts.items() if value is not None}
    if means := monitor.return_means_100:
        lengths = monitor.length_means_100
        for policy, mean in means.items():
            values[f"{policy}/charts/episodic_return"] = mean
            values[f"{policy}/charts/episodic_length"] = lengths[policy]
        values |= {f"{policy}/charts/updates": float(version) for policy, version in statistics.versions.items()}
    values.update(reported)
    values.update(monitor.evaluations.take_unwritten(all_known=is_end))
    for name, channel in statistics.channels.items():
        values[f"queue/{name}/fill"] = channel.fill / channel.capacity if channel.capacity else 0.0
        for key, lag in lags(name, channel):
            if lag.count:
                values[f"lag/{key}/mean"] = lag.mean
                values[f"lag/{key}/max"] = float(lag.max)
    for name, replay in statistics.replays.items():
        values[f"replay/{name}/fill"] = replay.fill / replay.capacity
        values[f"replay/{name}/reuse"] = replay.reuse
    for name, node in statistics.nodes.items():
        total_s = node.busy_s + node.idle_s + node.blocked_s
        if total_s > 0:
            values[f"node/{name}/busy"] = node.busy_s / total_s
    return values
