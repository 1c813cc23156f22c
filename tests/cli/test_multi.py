"""`levada train multi`: several policies in one environment, and everything that is said of each."""

import json

import pytest

import levada
from levada.cli import main

ENV = "openspiel:kuhn_poker"
SMALL = (
    f"train multi --env {ENV} --policy ppo:player_0 --policy dqn:player_1 --num-envs 4 --num-steps 16 --policy-kwargs "
    "ppo.minibatch_size=64 ppo.hidden_sizes=[8] dqn.hidden_sizes=[8] dqn.learning_starts=64 dqn.batch_size=16 "
    "dqn.compile=false ppo.compile=false --seed 1"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("multi") / "run"
    assert main([*SMALL.split(), "--until", "steps=2_000", "--out", str(path), "--quiet"]) == 0
    return path


def test_metrics_and_summary_are_by_policy(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = {
        name: value for line in lines for name, value in line.items()
    }  # each has what was reported since the one before
    for name in ("ppo", "dqn"):
        assert {
            f"{name}/charts/episodic_return",
            f"{name}/charts/episodic_length",
            f"{name}/charts/updates",
        } <= last.keys()
    assert "ppo/losses/entropy" in last
    assert "dqn/losses/td_loss" in last
    assert not any(name.startswith("losses/") for name in last)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["policies"].keys() == {"ppo", "dqn"}
    total = sum(each["return_mean_100"] for each in summary["policies"].values())
    assert abs(total) < 1e-9 or summary["episodes"] > 200  # a game of two players: what one wins, the other loses
    assert summary["updates"] == max(each["updates"] for each in summary["policies"].values())


def test_all_policies_are_evaluated(run, capsys):
    assert main(["eval", str(run), "--episodes", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert {name: each["episodes"] for name, each in found.items()} == {"ppo": 30, "dqn": 30}
    assert found["ppo"]["return_mean"] == pytest.approx(-found["dqn"]["return_mean"])
    assert main(["eval", str(run), "--episodes", "3"]) == 0
    assert "ppo: version " in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"has the policies ppo, dqn; use levada\.evaluate_policies"):
        levada.evaluate(run)


@pytest.mark.filterwarnings("ignore:.*goes on, but not bit for bit")
def test_it_is_loaded_and_resumed(run, tmp_path):
    result = levada.load(run)
    assert result.policies.keys() == {"ppo", "dqn"}
    assert result.policies["dqn"].version == result.summary.policies["dqn"].updates
    path = tmp_path / "again"
    assert main([*SMALL.split(), "--until", "steps=1_000", "--out", str(path), "--quiet"]) == 0
    assert main(["resume", str(path), "--until", "steps=1_500", "--quiet"]) == 0
    summary = json.loads((path / "summary.json").read_text())
    assert summary["env_steps"] >= 1_500
    assert summary["policies"].keys() == {"ppo", "dqn"}


def test_the_flow_is_drawn_and_checked(capsys):
    words = SMALL.partition(" --num-envs")[0].split()[1:]
    assert main(["show", *words]) == 0
    shown = capsys.readouterr().out
    assert "[ppo/weights] as ppo ~~> [dqn/weights] as dqn ~~> rollout (source)" in shown
    assert main(["check", *words]) == 0
    assert "checked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "MultiAgent has no policy; expected some, such as"),
        (
            "--policy ppo:player_0",
            "policies act for player_0; expected each agent of the environment: player_0, player_1",
        ),
        ("--policy ppo:player_0,player_1 --policy dqn:player_1", "agent 'player_1' has several policies"),
        (
            "--policy ppo:player_0 --policy ppo:player_1",
            "two policies are called 'ppo'; name one, as in other=ppo:player_1",
        ),
        ("--policy ppo", "MultiAgent(policy='ppo'): expected [NAME=]ALGORITHM:AGENTS"),
        ("--policy pop:player_0", "no algorithm 'pop'; did you mean 'ppo'"),
        ("--policy diloco:player_0", "expected [NAME=]ALGORITHM:AGENTS"),
        ("--policy sac:player_0,player_1 --policy-kwargs sac.nothing=1", "nothing"),
        (
            "--policy ppo:player_0,player_1 --policy-kwargs other.learning_rate=1",
            "expected POLICY.FIELD; the policies are: ppo",
        ),
        ("--policy ppo:player_0,player_1 --policy-kwargs ppo.num_envs=1", "num_envs is the same for all policies"),
        (
            "--policy ppo:player_0,player_1 --frame-stack 4",
            "frame_stack=4 is a setting of environments with a single agent",
        ),
    ],
)
def test_mistakes_are_named_before_anything_starts(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "multi", "--env", ENV, *words.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_single_agent_algorithm_names_the_others(capsys):
    assert main(["train", "ppo", "--env", ENV]) == 2
    assert "has several agents; expected a multi-agent algorithm, such as multi" in capsys.readouterr().err
