"""Drawings: what `print(flow)` and Mermaid say, and an SVG in which nothing overlaps."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from support.flows import samples as flow_samples
from support.flows.miswired import MISWIRED, begin
from support.flows.pictures import ADVANCE, Area, areas, kinds, labels_outside, numbers, parse, points
from support.flows.samples import ODD
from support.schedule.flows import plans

from levada.flow import Flow, Queue

TEXT = {}
MERMAID = {}

TEXT["ppo_like"] = """\
flow ppo: 5 nodes, 8 shards
  [weights] latest of policy
  [weights] ~~> rollout x8 (source)
  rollout --> gae (map)
  gae --[lag <= 0, block, admission order]--> batch (batch of 8)
  batch --> learn (learn)
  learn.stats --> report (report)
  learn.weights ==publish==> [weights]
  bound  gae->batch: 8 tickets, 8 per update, lag <= 0 of policy
"""
MERMAID["ppo_like"] = """\
flowchart LR
  n0["rollout x8 (source)"]
  n1["gae (map)"]
  n2["batch (batch of 8)"]
  n3["learn (learn)"]
  n4["report (report)"]
  n5[("weights<br/>latest of policy")]
  n5 -.->|"reads"| n0
  n0 --> n1
  n1 -->|"lag <= 0, block, admission order"| n2
  n2 --> n3
  n3 -->|"stats"| n4
  n3 ==>|publish| n5
"""

TEXT["impala_like"] = """\
flow impala: 4 nodes, 16 shards
  [weights] latest of policy
  [weights] ~~> rollout x16 (source)
  rollout --[lag <= 4, block, arrival order]--> batch (batch of 4)
  batch --> learn (learn)
  learn.stats --> report (report)
  learn.weights ==publish==> [weights]
  bound  rollout->batch: 12 tickets, 4 per update, window 9, lag <= 4 of policy, 4 shards always idle
"""
MERMAID["impala_like"] = """\
flowchart LR
  n0["rollout x16 (source)"]
  n1["batch (batch of 4)"]
  n2["learn (learn)"]
  n3["report (report)"]
  n4[("weights<br/>latest of policy")]
  n4 -.->|"reads"| n0
  n0 -->|"lag <= 4, block, arrival order"| n1
  n1 --> n2
  n2 -->|"stats"| n3
  n2 ==>|publish| n4
"""

TEXT["apex_like"] = """\
flow apex: 6 nodes, 16 shards
  [weights] latest of q
  [replay] replay: capacity 100,000, from 1,000, 8 samples per insert +- 512, prioritized (alpha 0.6, beta 0.4), arrival order
  [weights] ~~> rollout x16 (source)
  rollout --> n_step (map)
  n_step --> chunk (batch of 50 at the shard)
  [replay] --> sample (sample of 512)
  sample --> learn (learn)
  learn.stats --> report (report)
  chunk ==store==> [replay]
  learn.weights ==publish every 4==> [weights]
  learn.priorities ==reprioritize==> [replay]
"""
MERMAID["apex_like"] = """\
flowchart LR
  n0["rollout x16 (source)"]
  n1["n_step (map)"]
  n2["chunk (batch of 50 at the shard)"]
  n3["sample (sample of 512)"]
  n4["learn (learn)"]
  n5["report (report)"]
  n6[("weights<br/>latest of q")]
  n7[("replay<br/>capacity 100,000, from 1,000, 8 samples per insert +- 512, prioritized (alpha 0.6, beta 0.4), arrival order")]
  n6 -.->|"reads"| n0
  n0 --> n1
  n1 --> n2
  n7 --> n3
  n3 --> n4
  n4 -->|"stats"| n5
  n2 ==>|store| n7
  n4 ==>|publish every 4| n6
  n4 ==>|reprioritize| n7
"""

TEXT["two_learners"] = """\
flow duel: 10 nodes, 4 shards
  [ppo_weights] latest of ppo
  [dqn_weights] latest of dqn
  [dqn/replay] replay: capacity 50,000, from 500, 4 samples per insert +- 0, uniform, admission order
  [ppo_weights] as ppo ~~> [dqn_weights] as dqn ~~> rollout x4 (source)
  rollout --> parts (split by ppo, dqn)
  parts.ppo --> ppo/gae (map)
  ppo/gae --[lag <= 0, block, admission order]--> ppo/batch (batch of 4)
  ppo/batch --> ppo/learn (learn)
  ppo/learn.stats --> ppo/report (report)
  parts.dqn --> dqn/n_step (map)
  [dqn/replay] --> dqn/sample (sample of 32)
  dqn/sample --> dqn/learn (learn)
  dqn/learn.stats --> dqn/report (report)
  ppo/learn.weights ==publish==> [ppo_weights]
  dqn/n_step ==store==> [dqn/replay]
  dqn/learn.weights ==publish==> [dqn_weights]
  bound  ppo/gae->ppo/batch: 4 tickets, 4 per update, lag <= 0 of ppo
"""
MERMAID["two_learners"] = """\
flowchart LR
  n0["rollout x4 (source)"]
  n1["parts (split by ppo, dqn)"]
  n2["ppo/gae (map)"]
  n3["ppo/batch (batch of 4)"]
  n4["ppo/learn (learn)"]
  n5["ppo/report (report)"]
  n6["dqn/n_step (map)"]
  n7["dqn/sample (sample of 32)"]
  n8["dqn/learn (learn)"]
  n9["dqn/report (report)"]
  n10[("ppo_weights<br/>latest of ppo")]
  n11[("dqn_weights<br/>latest of dqn")]
  n12[("dqn/replay<br/>capacity 50,000, from 500, 4 samples per insert +- 0, uniform, admission order")]
  n10 -.->|"ppo"| n0
  n11 -.->|"dqn"| n0
  n0 --> n1
  n1 -->|"ppo"| n2
  n2 -->|"lag <= 0, block, admission order"| n3
  n3 --> n4
  n4 -->|"stats"| n5
  n1 -->|"dqn"| n6
  n12 --> n7
  n7 --> n8
  n8 -->|"stats"| n9
  n4 ==>|publish| n10
  n6 ==>|store| n12
  n8 ==>|publish| n11
"""


@pytest.mark.parametrize("name", TEXT)
def test_a_flow_in_words(name):
    assert f"{getattr(flow_samples, name)()}\n" == TEXT[name]


@pytest.mark.parametrize("name", MERMAID)
def test_a_flow_as_mermaid(name):
    assert f"{getattr(flow_samples, name)().mermaid()}\n" == MERMAID[name]


def test_an_empty_flow_is_drawn():
    flow = Flow("empty")
    assert str(flow) == "flow empty: 0 nodes, 0 shards"
    assert flow.mermaid() == "flowchart LR"
    assert parse(flow).findtext("title") == "flow empty"


def test_a_notebook_shows_the_drawing_or_the_text():
    flow = flow_samples.ppo_like()
    shown = flow._repr_mimebundle_(include=None, exclude=None)
    assert shown == {"image/svg+xml": flow.svg(), "text/plain": str(flow)}


def test_a_single_node_is_not_plural():
    flow = Flow("small")
    flow.source("rollout", str)
    assert str(flow) == "flow small: 1 node, 1 shard\n  rollout (source)"


def test_mermaid_holds_no_character_that_it_reserves():
    labels = re.findall(r'"([^\n]*)"', flow_samples.nested_scopes().mermaid())
    assert labels
    for label in labels:
        assert not re.search(r'["`]|<(?!br/>)[a-zA-Z/!?]|#(?!\d+;)', label), label
    assert (
        '-->|"odd #34;key#34; <&>\x00 --> #96;x#96; #35;1;<br/>lag <= 3, drop' in flow_samples.nested_scopes().mermaid()
    )
    assert "latest of #60;b>&#34;third#34;" in flow_samples.nested_scopes().mermaid()


# ---- SVG

DRAWN = [
    "ppo_like", "impala_like", "apex_like", "two_learners", "two_readers", "weighted_union", "free_with_evaluation",
    "nested_scopes", "mixed_in_replay",
]  # fmt: skip


def assert_legible(flow: Flow) -> None:
    """Nothing lies on anything, no line passes through a box or a word, each line has room for its tip."""
    root = parse(flow)
    boxes = areas(root)
    parts = [*boxes, *labels_outside(root, boxes)]
    assert not [(a.title, b.title) for a, b in itertools.combinations(parts, 2) if a.overlaps(b)]
    for line in root.iter("path"):
        if "lv-line" in line.attrib["class"]:
            path = points(line.attrib["d"])
            assert path[-1] != path[-2]
            for x, y in path[1:-1]:
                assert not [area.title for area in parts if area.holds(x, y)], line.attrib["d"]


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_overlaps_and_no_line_crosses_a_box_or_a_word(name):
    assert_legible(getattr(flow_samples, name)())


@settings(max_examples=25, deadline=None, derandomize=True)
@given(plans())
def test_random_flows_are_legible_too(plan):
    assert_legible(plan.build())


@pytest.mark.parametrize("name", DRAWN)
def test_words_fit_into_their_boxes_and_all_into_the_picture(name):
    root = parse(getattr(flow_samples, name)())
    boxes = areas(root)
    for text in root.iter("text"):
        size = 13 if "lv-name" in text.attrib.get("class", "") else 11
        width, x, y = ADVANCE * size * len(text.text or ""), float(text.attrib["x"]), float(text.attrib["y"])
        for box in boxes:
            if box.holds(x, y):
                assert width <= box.right - box.left, text.text
    _, _, width, height = numbers(root.attrib["viewBox"])
    drawn = [
        point for line in root.iter("path") if "lv-line" in line.attrib["class"] for point in points(line.attrib["d"])
    ]
    drawn += [corner for box in boxes for corner in ((box.left, box.top - 6), (box.right + 6, box.bottom))]
    for x, y in drawn:
        assert 0 <= x <= width
        assert 0 <= y + 40 <= height


@pytest.mark.parametrize("name", DRAWN)
def test_every_name_is_in_the_picture(name):
    flow = getattr(flow_samples, name)()
    root = parse(flow)
    titles = "\n".join(title.text or "" for title in root.iter("title"))
    for part in (*flow.nodes, *flow.registers, *flow.replays, *(bound.channel for bound in flow.bounds())):
        assert part.replace("\x00", "\ufffd") in titles
    assert root.attrib["role"] == "img"
    assert root.findtext("desc") == str(flow).replace("\x00", "\ufffd")
    for register in flow.registers:
        assert register in {text.text for text in root.iter("text")}


@pytest.mark.parametrize("case", MISWIRED)
def test_a_malformed_flow_is_drawn_too(case):
    flow = MISWIRED[case]()
    assert str(flow)
    assert flow.mermaid().startswith("flowchart LR")
    boxes = areas(parse(flow))
    assert len(boxes) >= len(flow.nodes)
    assert not [(a.title, b.title) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


def test_shards_are_stacks_and_feedback_is_dashed():
    root = parse(flow_samples.apex_like())
    found = kinds(root)
    assert found["lv-source"] == 3
    assert found["lv-node"] == 3 * 3 + 3, "three sharded nodes as stacks of cards, three single ones"
    assert found["lv-back"] == 3, "publish, read, reprioritize"
    assert (found["lv-register"], found["lv-replay"]) == (1, 1)
    words = [text.text for text in root.iter("text")]
    assert {"source x16", "map x16", "publish every 4", "reprioritize", "store", "stats"} <= set(words)


def test_feedback_runs_below_the_graph():
    root = parse(flow_samples.apex_like())
    lowest = max(area.bottom for area in areas(root) if not area.title.startswith("weights"))
    backs = [line for line in root.iter("path") if line.attrib["class"] == "lv-line lv-back"]
    assert all(max(y for _, y in points(line.attrib["d"])) > lowest for line in backs)


def test_pills_say_what_the_queue_promises():
    for name, pills in (
        ("ppo_like", ["lag <= 0, 8 tickets"]),
        ("impala_like", ["lag <= 4, 12 tickets"]),
        ("free_with_evaluation", ["any lag, 16 tickets", "any lag, 1 ticket"]),
    ):
        words = [text.text for text in parse(getattr(flow_samples, name)()).iter("text")]
        assert [word for word in words if word and "lag" in word] == pills
    p = begin()
    p.finish(p.flow.batch("batch", p.rollouts.via(Queue(max_lag=1, on_stale="drop")), size=2))
    assert "lag &lt;= 1, drop, 4 tickets" in p.flow.svg()


def test_scopes_are_groups_that_hold_what_is_theirs():
    root = parse(flow_samples.nested_scopes())
    rects = [rect.attrib for rect in root.iter("rect") if rect.attrib.get("class") == "lv-scope"]
    names = [text.text for text in root.iter("text") if (text.text or "").startswith("agents")]
    assert names == ["agents", "agents/a", "agents/b"]
    scopes = [
        Area(name, *(float(r[k]) for k in "xy"), float(r["x"]) + float(r["width"]), float(r["y"]) + float(r["height"]))
        for name, r in zip(names, rects, strict=True)
    ]
    for area in areas(root):
        name = re.split(r"[ :]", area.title)[0]
        for scope in scopes:
            inside = scope.holds((area.left + area.right) / 2, (area.top + area.bottom) / 2)
            if not area.title.startswith(("parts", "w_")) and "->" not in area.title:
                assert inside == name.startswith(f"{scope.title}/"), (name, scope.title)


def test_a_picture_is_the_same_each_time():
    assert flow_samples.nested_scopes().svg() == flow_samples.nested_scopes().svg()


def test_odd_names_are_escaped():
    picture = flow_samples.nested_scopes().svg()
    assert "\x00" not in picture
    assert "<b>" not in picture
    assert ODD.replace("\x00", "\ufffd") in (parse(flow_samples.nested_scopes()).findtext("desc") or "")


def test_wide_letters_have_room():
    widths = []
    for key in ("ab", "学习"):
        p = begin()
        p.finish(p.flow.split("parts", p.rollouts, keys=[key])[key].via(Queue(max_lag=0)))
        (pill,) = (area for area in areas(parse(p.flow)) if "->" in area.title)
        widths.append(pill.right - pill.left)
    assert widths[1] > widths[0] + 10


def test_the_picture_is_readable_by_light_and_dark():
    picture = flow_samples.ppo_like().svg()
    light, dark = picture.split("@media (prefers-color-scheme:dark)")
    used = set(re.findall(r'class="(lv-[a-z]+)', picture)) - {"lv-middle", "lv-name"}
    for kind in used:
        assert f".{kind}{{" in light or f".{kind}" in light
    for kind in ("lv-ground", "lv-node", "lv-source", "lv-learn", "lv-queue", "lv-register", "lv-line"):
        assert f".{kind}{{" in dark
