"""`levada train multi`: several policies in one environment, and everything that is said of each."""

import json
from dataclasses import dataclass

import pytest

import levada
from levada.algorithms.multi_agent import multi_agent
from levada.cli import main
from levada.rl.envs.agents.agents_task import AgentsTask
from levada.rl.envs.agents.task import MultiAgentTask

ENV, SPREAD = "openspiel:kuhn_poker", "pettingzoo:mpe2.simple_spread_v3"
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
    assert total == pytest.approx(0.0, abs=1e-9)  # a game of two players: what one wins, the other loses
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


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A run in which one policy acts for both players."""
    path = tmp_path_factory.mktemp("multi") / "other"
    words = SMALL.replace("--policy ppo:player_0 --policy dqn:player_1", "--policy ppo:player_0,player_1").split()
    words = [word for word in words if not word.startswith("dqn.")]
    assert main([*words, "--until", "steps=500", "--out", str(path), "--quiet"]) == 0
    return path


def test_runs_play_against_each_other_on_every_side(run, other, capsys):
    """In a game of two players, what one wins the other loses; one policy for both players sits on either side."""
    assert main(["eval", str(run), str(other), "--episodes", "40", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["encounters"]
    assert [(row["run"] == str(run), row["against"] == str(run), row["side"]) for row in rows] == [
        (one, two, [player]) for one, two in ((1, 1), (1, 0), (0, 1), (0, 0)) for player in ("player_0", "player_1")
    ]
    assert all(row["episodes"] == 40 for row in rows)
    for one, two in ((0, 1), (2, 5), (3, 4), (6, 7)):  # the same games, as seen from both sides
        assert rows[one]["return_mean"] == pytest.approx(-rows[two]["return_mean"])
        assert rows[one]["win_rate"] + rows[two]["win_rate"] + rows[one]["draw_rate"] == pytest.approx(1.0)
    assert main(["eval", str(run), str(other), "--episodes", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 9
    assert shown[2].startswith(f"  {run} as player_1 against {run}: won ")


def test_each_run_is_shown_what_it_was_trained_with(run, tmp_path):
    """A policy that sees its index, and the average policy of NFSP, against policies that see neither."""
    small = "--num-envs 4 --hidden-sizes 8 --compile False --quiet --until updates=1"
    of_replay = "--learning-starts 64 --batch-size 16"
    for words in (f"ippo {small} --num-steps 16", f"nfsp {small} {of_replay}"):
        where = str(tmp_path / words.partition(" ")[0])
        assert main(["train", *words.split(), "--env", ENV, "--out", where]) == 0
    runs = [run, tmp_path / "ippo", tmp_path / "nfsp"]
    rows = levada.cross_play(runs, num_episodes=20, deterministic=False)
    assert len(rows) == 3 * 3 * 2
    found = {(row.run, row.against, row.side): row.return_mean for row in rows}
    for (one, other, side), mean in found.items():
        [seat] = side
        assert mean == pytest.approx(-found[other, one, ("player_1" if seat == "player_0" else "player_0",)])
    small = (
        "--num-envs 4 --num-steps 16 --quiet --until updates=1 --policy-kwargs ppo.minibatch_size=64 ppo.compile=false"
    )
    policies = f"--policy ppo:player_0 --policy frozen:{tmp_path}/nfsp:player_1"
    assert main([*f"train multi --env {ENV} {policies} {small} --out {tmp_path}/learner".split()]) == 0
    plays = levada.load(tmp_path / "learner").flow.registers["frozen/weights"].weights
    average = levada.load(tmp_path / "nfsp").policies["average"].weights
    assert plays.keys() == average.keys()
    assert all((plays[name] == average[name]).all() for name in average)


def test_what_cannot_play_against_each_other_is_said(run, tmp_path, capsys):
    path = tmp_path / "single"
    assert main(["train", "ppo", "--env", "CartPole-v1", "--until", "updates=1", "--out", str(path), "--quiet"]) == 0
    assert main(["eval", str(run), str(path)]) == 2
    assert f"cross_play: {path} has a single agent" in capsys.readouterr().err
    assert main(["eval", str(run), str(run), "--checkpoint", "3"]) == 2
    assert "--render are for one run" in capsys.readouterr().err
    assert main(["eval"]) == 2
    assert "which run? `levada eval RUN`" in capsys.readouterr().err
    with pytest.raises(ValueError, match="runs is empty; expected at least one run"):
        levada.cross_play([])
    words = SMALL.replace(ENV, "openspiel:leduc_poker").split()
    assert main([*words, "--until", "updates=1", "--out", str(tmp_path / "leduc"), "--quiet"]) == 0
    with pytest.raises(
        ValueError, match=r"has env 'openspiel:leduc_poker', and .* 'openspiel:kuhn_poker'; expected runs with"
    ):
        levada.cross_play([run, tmp_path / "leduc"])


@dataclass(frozen=True, kw_only=True)
class League(levada.Algorithm):
    """Two policies that learn, each at either seat."""

    def flow(self, task):
        seats = dict.fromkeys(("one", "two"), ("player_0", "player_1"))
        ppo = levada.PPO(num_envs=4, num_steps=8, minibatch_size=16, hidden_sizes=(8,), compile=False)
        agents = MultiAgentTask(
            task.env, seats, policy_of=lambda agent, episode: "one" if agent == "player_0" else "two"
        )
        return multi_agent(agents, {"one": ppo, "two": ppo})

    def resolve_task(self, task):
        return AgentsTask.of(task)


def test_which_of_several_policies_plays_for_a_run_is_not_guessed(tmp_path):
    result = levada.train(League(), ENV, until="updates=1", out=tmp_path / "league", display="quiet")
    with pytest.raises(ValueError, match="has several policies trained for player_0: one, two; expected one"):
        levada.cross_play([result])


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
        ("", "MultiAgent has no policy that learns; expected one, such as"),
        (
            "--policy ppo:player_0",
            "policies act for player_0; expected each agent of the environment: player_0, player_1 (without a policy: player_1)",
        ),
        ("--policy ppo:player_0 --policy dqn:player_2", "player_1 (without a policy: player_1; unknown: player_2)"),
        (
            "--policy ppo:player_0,player_1 --learning-rate 0.1",
            "have it; `--policy-kwargs POLICY.NAME=VALUE` sets it for a policy; `levada train multi --help` lists all",
        ),
        (
            "--policy ppo:player_0,player_1 --policy dqn:player_1",
            "agent 'player_1' has several policies that learn, ppo and dqn",
        ),
        (
            "--policy ppo:player_0 --policy ppo:player_1",
            "two policies are called 'ppo'; name one, as in other=ppo:player_1",
        ),
        ("--policy ppo", "MultiAgent(policy='ppo'): expected [NAME=]WHO:AGENTS"),
        ("--policy pop:player_0", "no algorithm 'pop'; did you mean 'ppo'"),
        ("--policy diloco:player_0", "expected [NAME=]WHO:AGENTS"),
        (
            "--policy mappo:player_0,player_1",
            "with_state: OpenSpielGame: agents act in turns, so their observations are not known together; give the environment",
        ),
        ("--policy sac:player_0,player_1 --policy-kwargs sac.nothing=1", "nothing"),
        (
            "--policy ppo:player_0,player_1 --policy-kwargs other.learning_rate=1",
            "expected POLICY.FIELD; the policies are: ppo",
        ),
        ("--policy ppo:player_0,player_1 --policy-kwargs ppo.num_envs=1", "num_envs is the same for all policies"),
        (
            "--policy my-ppo=ppo:player_0,player_1 --policy-kwargs my-ppo.discount=3",
            "PPO(discount=3.0): expected a number from 0 to 1",
        ),
        (
            "--policy ppo:player_0,player_1 --policy-kwargs ppo.discount",
            "--policy-kwargs ppo.discount: expected name=value, such as `--policy-kwargs ppo.learning_rate=0.001`",
        ),
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
    assert "has several agents; expected a multi-agent algorithm, such as multi or mappo" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "vdn", "qmix", "maddpg"])
def test_one_algorithm_trains_all_agents(algorithm, tmp_path, capsys):
    """By its name and its preset; what was trained is evaluated and loaded."""
    path, of_replay = tmp_path / "run", "--learning-starts 64 --batch-size 16"
    words = f"train {algorithm} --env {SPREAD} --hidden-sizes 8 --num-envs 4 --compile False --seed 1 --quiet"
    more = "" if algorithm in ("ippo", "mappo") else of_replay
    assert main([*words.split(), *more.split(), "--until", "updates=2", "--out", str(path)]) == 0
    result = levada.load(path)
    assert result.summary.updates >= 2
    names = {"agent_0", "agent_1", "agent_2"} if algorithm == "maddpg" else {"policy"}
    assert set(result.policies) == names
    assert json.loads((path / "config.json").read_text())["settings"]["num_steps"]["from"] == "preset"
    capsys.readouterr()
    assert main(["eval", str(path), "--episodes", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert found.keys() == names
    assert all(own["episodes"] == 9 // len(names) for own in found.values())  # three of each agent
    assert all(own["return_mean"] < 0 for own in found.values())
