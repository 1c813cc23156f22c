"""Drawings of hostile runs: nothing but shapes and text is left."""

import pytest

from levada.algorithms.dqn import DQN
from levada.algorithms.ppo import PPO
from levada.api.run import build
from levada.rl.envs.task import Task
from levada.watch.svg import safe_svg

HEAD = '<svg xmlns="http://www.w3.org/2000/svg"'


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        '<foreignObject><body xmlns="http://www.w3.org/1999/xhtml" onload="alert(1)"/></foreignObject>',
        '<a href="javascript:alert(1)"><text>x</text></a>',
        '<image href="https://example.org/x.png"/>',
        '<use href="https://example.org/x.svg#a"/>',
        "<style>@import 'https://example.org/x.css'</style>",
        '<animate attributeName="href" values="javascript:alert(1)"/>',
        '<html:script xmlns:html="http://www.w3.org/1999/xhtml">alert(1)</html:script>',
    ],
)
def test_elements_that_could_do_something_are_left_out(inside):
    assert safe_svg(f"{HEAD}>{inside}<rect x='1'/></svg>") == f'{HEAD}><rect x="1"></rect></svg>'


@pytest.mark.parametrize(
    "attribute",
    ['onclick="x"', 'style="background:url(//x)"', 'href="//x"', 'marker-end="url(//x#a)"', 'fill="url(//x)"'],
)
def test_attributes_that_could_do_something_are_left_out(attribute):
    assert safe_svg(f'{HEAD}><rect {attribute} class="a"/></svg>') == f'{HEAD}><rect class="a"></rect></svg>'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no xml",
        "<svg/>",
        f"{HEAD}>",
        '<!DOCTYPE svg [<!ENTITY a "b">]>' + f"{HEAD}><text>&a;</text></svg>",
        f"{HEAD}><text>{'x' * (4 << 20)}</text></svg>",
        "<html xmlns='http://www.w3.org/1999/xhtml'/>",
        "\x00",
    ],
)
def test_what_is_no_drawing_is_refused(text):
    assert safe_svg(text) is None


def test_deep_drawings_are_cut():
    assert "text" not in safe_svg(f"{HEAD}>{'<g>' * 500}<text/>{'</g>' * 500}</svg>")


def test_names_stay_text():
    name = '</text><script>alert(\'"&")</script>'
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    shown = safe_svg(f'{HEAD}><g data-node="{escaped}"><text>{escaped}</text></g></svg>')
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown


@pytest.mark.parametrize("config", [PPO(), DQN()])
def test_a_drawing_of_a_flow_keeps_all_its_shapes(config):
    svg = build(config, Task("CartPole-v1")).svg()
    safe = safe_svg(svg)
    for tag in (
        "<rect",
        "<path",
        "<text",
        "data-node=",
        "data-channel=" if isinstance(config, PPO) else "data-replay=",
    ):
        assert safe.count(tag) == svg.count(tag)
