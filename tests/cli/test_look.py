"""`levada`, `show`, `check`, `algorithms`, `--help`: look without running."""

import io
import pydoc
import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from support.runs import cli as cli_harness

import levada
from levada.algorithms.fields import meanings
from levada.algorithms.presets import PRESETS
from levada.api import build
from levada.rl.envs.task import Task
from levada.run.until import NAMES

SHOW = "show ppo --env CartPole-v1"


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return cli_harness.Shell(capsys)


def test_alone_it_lists_its_commands(shell):
    done = shell("")
    assert (done.code, done.err) == (0, "")
    assert done.out == shell("--help").out == shell("help").out
    assert max(map(len, done.out.splitlines())) <= 80
    for verb in ("train", "eval", "show", "check", "algorithms"):
        assert re.search(rf"^  levada {verb}\b", done.out, re.MULTILINE)


def test_version(shell):
    assert shell("--version").out == f"levada {levada.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "show",
        "check",
        "eval",
        "algorithms",
        "train ppo",
        "sweep",
        "sweep ppo",
        "show ppo",
        "check ppo",
        "train ppo --env CartPole-v1",
    ],
)
def test_help_of_everything(shell, command):
    done = shell(f"{command} --help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: levada {' '.join(command.split()[:2])}")
    assert not list(Path().iterdir())


def test_help_of_train_is_in_groups_with_the_most_important_first(shell):
    out = shell("train ppo --env CartPole-v1 --help").out
    groups = ["", "common", "sampling", "optimization", "network", "machine", "evaluation", "output"]
    assert _groups(out) == groups
    flags = re.findall(r"^\W*?(--[a-z][a-z-]+)", out, re.MULTILINE)
    common = ["--env", "--until", "--seed", "--on", "--out"]
    assert [flag for flag in flags if flag in common] == common
    assert f"(default: {PRESETS['ppo']['CartPole-v1']['learning_rate']})" in out
    assert "(default: 0.0003)" in shell("train ppo --help").out
    places = {flag: place for place, flag in enumerate(flags)}
    assert places["--config"] < places["--init-from"] < places["--num-steps"] < places["--frame-stack"]
    assert places["--vectorization"] < places["--minibatch-size"] < places["--portable"] < places["--quiet"]


def _groups(out):
    return re.findall(r"^\W*([a-z]*) ?options\W*$", out, re.MULTILINE)


@pytest.mark.parametrize("columns", [80, 120])
def test_help_of_train_fills_the_lines_that_there_are(shell, monkeypatch, columns):
    """No line is broken because the source is: the first word of the next one would not have fitted."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for algorithm in ("ppo", "dqn"):
        out = shell(f"train {algorithm} --help").out
        lines = [line.rstrip("│ ") for line in out.splitlines()]
        assert max(map(len, lines)) <= columns
        assert "['None']" not in out
        assert "{None}" not in out
        (column,) = {line.index("show this") for line in lines if "-h, --help" in line}
        pairs = [(line, after) for line, after in pairwise(lines) if not after[:column].strip("│ ") and after[column:]]
        wrapped = [
            (line, after) for line, after in pairs if line[column - 2 : column] == "  " and line[column:].strip()
        ]
        assert len(wrapped) > 20
        assert [line for line, after in wrapped if len(f"{line} {after[column:].split()[0]}") <= columns - 2] == []
    text = re.sub(r"[│\s]+", " ", shell("train ppo --help").out)
    for name, meaning in meanings(levada.PPO).items():
        assert meaning in text, name
    assert [name for name in NAMES if f"`{name}=" not in text] == []


def test_help_of_videos_says_that_they_are_of_other_episodes(shell):
    assert "are not those that are played without `--video`" in re.sub(r"[│\s]+", " ", shell("eval --help").out)


def test_a_field_of_a_users_own_stands_in_a_group_of_its_own(shell, tmp_path):
    (tmp_path / "mine_of_this_test.py").write_text(
        "from dataclasses import dataclass\nfrom levada import PPO\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(PPO):\n"
        '    curiosity: float = 0.5\n    """How much of it\n    there is."""\n'
    )
    out = shell("train mine_of_this_test.py:Mine --help").out
    assert _groups(out)[1:3] == ["common", "mine"]
    assert re.search(r"--curiosity FLOAT +How much of it there is. \(default: 0.5\)", out)


def test_help_of_a_configuration_says_what_its_fields_mean():
    text = " ".join(pydoc.render_doc(levada.PPO, renderer=pydoc.plaintext).replace("|", " ").split())
    for name, meaning in meanings(levada.PPO).items():
        assert f"{name}: " in text
        assert " ".join(meaning.replace("|", " ").split()) in text


def test_algorithms(shell):
    done = shell("algorithms")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("a2c           A2C: advantage actor-critic")
    assert "\nppo           PPO: proximal policy optimization" in done.out
    assert "path/to/file.py:Class" in done.out


def test_show_prints_the_flow_and_its_hash(shell):
    done = shell(SHOW)
    flow = build(levada.api.configure("ppo", "CartPole-v1", {})[0], Task("CartPole-v1"))
    assert done.code == 0
    assert done.out == f"{flow}\n  hash   {flow.hash()}\n"
    assert "bound  gae->batch" in done.out


def test_show_follows_the_fields(shell):
    done = shell(f"{SHOW} --shards 3 --max-lag 2")
    assert "3 shards" in done.out
    assert "lag <= 2" in done.out


def test_show_mermaid(shell):
    done = shell(f"{SHOW} --mermaid")
    assert done.code == 0
    assert done.out.startswith("flowchart ")
    assert "rollout" in done.out


def test_show_svg(shell):
    done = shell(f"{SHOW} --svg flow.svg")
    assert (done.code, done.out) == (0, "flow.svg\n")
    assert ET.parse("flow.svg").getroot().tag.endswith("svg")


def test_check(shell):
    done = shell("check ppo --env support.envs.small:SmallPlain-v0")
    assert (done.code, done.out) == (0, "ppo on support.envs.small:SmallPlain-v0: checked, no remarks\n")


def test_modules_in_the_present_directory_are_found_after_all_libraries(shell, tmp_path):
    (tmp_path / "envs_of_this_test.py").write_text(
        "import gymnasium\nfrom support.envs.small import Plain\ngymnasium.register(id='OfThisTest-v0', entry_point=Plain)\n"
    )
    (tmp_path / "random.py").write_text("raise RuntimeError\n")
    assert shell("check ppo --env envs_of_this_test:OfThisTest-v0").code == 0


def test_check_tells_what_gymnasium_remarks(shell):
    done = shell("check ppo --env CartPole-v1")
    assert done.code == 0
    *remarks, last = done.out.splitlines()
    assert len(remarks) == 2
    assert all(re.match(r"remark: A Box observation space m..imum value is -?infinity", line) for line in remarks)
    assert last == "ppo on CartPole-v1: checked, 2 remarks"


def test_check_lists_every_problem_of_a_flow(shell, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from levada import Algorithm, Flow, Queue\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Algorithm):\n"
        "    def flow(self, task):\n"
        "        flow = Flow('mine')\n"
        "        made = flow.source('make', lambda shard: lambda weights: 1)\n"
        "        flow.map('a', str, made)\n"
        "        flow.map('b', str, made)\n"
        "        return flow\n"
    )
    done = shell("check mine.py:Mine --env CartPole-v1")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("levada: flow 'mine' has ")
    assert len(re.findall(r"^  LV\d+ ", done.err, re.MULTILINE)) >= 2


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    import os

    ours, theirs = os.pipe()
    os.close(ours)
    process = cli_harness.begin(SHOW, cwd=tmp_path, stdout=theirs)
    os.close(theirs)
    _, err = process.communicate(timeout=300)
    assert err == ""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("command", "says"),
    [(["train", "nothing"], True), (["train", "nothing", "--quiet"], False), (["check", "nothing"], False)],
)
def test_a_terminal_hears_at_once_that_torch_is_being_loaded(monkeypatch, command, says):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    assert levada.cli.main(command) == 2
    assert sys.stderr.getvalue().startswith("levada: loading\rlevada: no algorithm 'nothing'") == says
