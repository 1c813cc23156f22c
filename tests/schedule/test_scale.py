"""`benchmarks/scale.py` at a tiny size: the simulation runs each flow, keeps the bounds, and its plot can be drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import scale
from benchmarks._scale.flows import CASES


@pytest.mark.parametrize("name", CASES)
def test_the_simulation_runs_each_flow(name: str) -> None:
    found = scale.simulated(name, 4, repeats=1, min_items=40)
    assert found.shards == 4
    assert found.num_items == 40
    assert found.num_events >= found.num_items
    assert 0.0 <= found.idle < 0.7
    assert 1.0 < found.items_per_s < 4.2
    assert found.us_per_item > 0.0
    assert found.size_for(2.0 * found.us_per_item, 1.0) == pytest.approx(0.5 / found.core * found.shards)
    assert (found.lag is None) == (name in ("dqn", "apex_dqn"))
    assert found.lag is None or 1 <= found.lag[0] <= (found.lag[2] or 0)


def test_the_command_prints_tables_and_draws_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawing = tmp_path / "scale.svg"
    monkeypatch.setattr(scale, "loop_us_per_item", lambda shards: 40.0)
    monkeypatch.setattr(sys, "argv", ["scale.py", "ppo", "--shards", "2", "4", "--repeats", "1", "--svg", str(drawing)])
    assert scale.main() == 0
    printed = capsys.readouterr().out
    assert "hub, ppo" in printed
    assert "records" in printed
    lines = [element for element in ElementTree.parse(drawing).iter() if element.tag.endswith("polyline")]
    assert len(lines) == 2
