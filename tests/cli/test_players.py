"""`levada train multi` with policies that play and do not learn: of saved runs, functions in files, past versions."""

import json
import shutil
from pathlib import Path

import pytest

import levada
from levada.algorithms.checks import ConfigError
from levada.algorithms.multi_agent import MultiAgent
from levada.cli import main
from levada.errors import LoadError

ENV = "openspiel:kuhn_poker"
BOTH = "player_0,player_1"
HAND = """
import numpy as np

NUMBER = 3

class Bot:
    @staticmethod
    def passes(obs, rng):
        return 0

def anything(obs, rng):
    return rng.choice(np.flatnonzero(obs["action_mask"]))

def none():
    return 0
"""
SMALL = "ppo.minibatch_size=64 ppo.hidden_sizes=[8] ppo.compile=false"


def train(*policies, out, kwargs="", until="updates=2", more=""):
    """Train in poker."""
    words = [word for policy in policies for word in ("--policy", policy)]
    where = f"--env {ENV} --num-envs 4 --num-steps 16 --seed 1 --quiet --until {until} --out {out} {more}"
    return main(["train", "multi", *where.split(), *words, "--policy-kwargs", *SMALL.split(), *kwargs.split()])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a run of one policy for both players, one of a policy for each, and a file with functions."""
    path = tmp_path_factory.mktemp("players")
    (path / "hand.py").write_text(HAND)
    assert train(f"ppo:{BOTH}", out=path / "one") == 0
    small = "dqn.hidden_sizes=[8] dqn.learning_starts=64 dqn.batch_size=16 dqn.compile=false"
    assert train("ppo:player_0", "dqn:player_1", out=path / "each", kwargs=small) == 0
    return path


@pytest.fixture
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def settings(run):
    return json.loads((Path(run) / "config.json").read_text())["settings"]


def evaluated(run, capsys, episodes=40):
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", str(episodes), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["policies"]


def test_opponents_of_a_saved_run_and_of_a_file(inside, tmp_path, monkeypatch, capsys):
    """One seat is the learner's, in turn; the other is drawn. The run is resumed and evaluated from elsewhere."""
    run = tmp_path / "run"
    assert train(f"ppo:{BOTH}", f"old=frozen:one:{BOTH}", f"hand.py:anything:{BOTH}", out=run) == 0
    assert settings(run)["policy"]["value"] == [
        f"ppo=ppo:{BOTH}", f"old=frozen:{inside}/one:{BOTH}", f"anything={inside}/hand.py:anything:{BOTH}",
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["resume", str(run), "--until", "updates=4", "--quiet"]) == 0
    found = evaluated(run, capsys)
    assert {name: each["version"] for name, each in found.items()} == {"ppo": 4, "old": None, "anything": None}
    assert found["ppo"]["episodes"] == 40 == found["old"]["episodes"] + found["anything"]["episodes"]
    assert min(each["episodes"] for each in found.values()) > 10
    assert main(["eval", str(run), "--episodes", "4"]) == 0
    assert "old: not trained here, " in capsys.readouterr().out
    assert levada.load(run).policies.keys() == {"ppo"}


def test_a_function_in_a_class_has_its_own_name(inside, tmp_path):
    assert train("ppo:player_0", "hand.py:Bot.passes:player_1", out=tmp_path / "run") == 0
    assert settings(tmp_path / "run")["policy"]["value"][1] == f"passes={inside}/hand.py:Bot.passes:player_1"


def test_the_result_is_the_same_in_processes(inside, tmp_path):
    hashes = set()
    for number, on in enumerate(("inline", "processes:2")):
        run = tmp_path / str(number)
        policies = (f"ppo:{BOTH}", f"frozen:one:{BOTH}", f"hand.py:anything:{BOTH}")
        assert train(*policies, out=run, more=f"--shards 2 --on {on}") == 0
        hashes.add(json.loads((run / "summary.json").read_text())["params_sha256"])
    assert len(hashes) == 1


def test_past_versions(inside, tmp_path, capsys):
    """They are kept, saved, and play in the evaluation; the run is resumed and plays against another run."""
    run = tmp_path / "run"
    kwargs = "past.every=2 past.size=4 past.win_rate=None"
    assert train(f"ppo:{BOTH}", f"past:ppo:{BOTH}", out=run, kwargs=kwargs, until="updates=3") == 0
    assert main(["resume", str(run), "--until", "updates=5", "--quiet"]) == 0
    kept = levada.load(run).policies["ppo"].weights["past/versions"]
    assert kept.tolist() == [0, 2, 4, -1]
    found = evaluated(run, capsys)
    assert found["ppo"]["episodes"] == found["past"]["episodes"] == 40
    assert found["past"]["version"] is None
    capsys.readouterr()
    assert main(["eval", str(run), "one", "--episodes", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["encounters"]) == 8


def test_the_policy_of_a_run_is_found_by_name_or_by_agents(inside, tmp_path, capsys):
    for policy, expected in (("frozen:each:player_1", "dqn"), ("ppo=frozen:each:player_1", "ppo")):
        run = tmp_path / expected
        words = f"train multi --env {ENV} --num-envs 4 --num-steps 16 --quiet --until updates=1 --out {run}"
        more = ["--policy", "new=ppo:player_0", policy, "--policy-kwargs", *SMALL.replace("ppo.", "new.").split()]
        assert main([*words.split(), *more]) == 0
        [register] = [each for each in levada.load(run).flow.registers.values() if hasattr(each, "weights")]
        own = levada.load("each").policies[expected].weights
        assert register.weights.keys() == own.keys()
        assert all((register.weights[name] == own[name]).all() for name in own)
    assert train(f"ppo:{BOTH}", f"frozen:each:{BOTH}", out=tmp_path / "none") == 2
    said = f"each has the policies ppo, dqn; say which, as in frozen=frozen:{inside}/each#ppo:{BOTH}"
    assert said in capsys.readouterr().err
    assert train("ppo:player_0", "old=frozen:each#ddqn:player_1", out=tmp_path / "none") == 2
    assert "policy 'old': " in (err := capsys.readouterr().err)
    assert "has no policy 'ddqn'; expected one of ppo, dqn" in err


def test_the_policy_of_a_run_is_named(inside, tmp_path):
    run = tmp_path / "run"
    assert train("ppo:player_0", "old=frozen:each#dqn:player_1", out=run) == 0
    [register] = [each for each in levada.load(run).flow.registers.values() if hasattr(each, "weights")]
    own = levada.load("each").policies["dqn"].weights
    assert all((register.weights[name] == own[name]).all() for name in own)
    assert main(["resume", str(run), "--until", "updates=2", "--quiet"]) == 0


def test_a_directory_may_have_the_sign_in_its_name(inside, tmp_path):
    shutil.copytree("each", tmp_path / "each#ppo")
    assert train("ppo:player_0", f"old=frozen:{tmp_path}/each#ppo#dqn:player_1", out=tmp_path / "run") == 0


def test_a_run_with_agents_indices(inside, tmp_path):
    words = f"train ippo --env {ENV} --num-envs 4 --num-steps 16 --compile False --hidden-sizes 8 --quiet"
    assert main([*words.split(), "--until", "updates=1", "--out", str(tmp_path / "ippo")]) == 0
    policies = "ppo:player_0", f"frozen:{tmp_path}/ippo:player_1"
    assert train(*policies, out=tmp_path / "run") == 0
    task = levada.load(tmp_path / "run").flow.nodes["rollout"].work.task
    assert task.agent_id == ("frozen",), "each is shown what it was trained with"
    assert main(["eval", str(tmp_path / "run"), "--episodes", "4"]) == 0


@pytest.mark.parametrize(
    ("policies", "kwargs", "message"),
    [
        (("frozen:one",), "", "(policy='frozen:one'): expected [NAME=]WHO:AGENTS, such as ppo:agent_0,agent_1"),
        (("frozen::player_1",), "", "expected [NAME=]WHO:AGENTS"),
        (("frozen:nowhere:player_1",), "", "levada: policy 'frozen': there is no run at 'nowhere': no such directory"),
        (("hand.py:player_1",), "", "WHO: an algorithm, frozen:RUN, past:POLICY, or path/to/file.py:FUNCTION"),
        (("hand.py:nothing:player_1",), "", "hand.py has no 'nothing'; expected a function (observation, random numbers)"),
        (("hand.py:NUMBER:player_1",), "", "player_1'): hand.py:NUMBER is 3; expected a function or an algorithm"),
        (("=dqn:player_1",), "", "the name is empty, expected NAME=WHO:AGENTS or WHO:AGENTS"),
        (("diloco:player_1",), "", "diloco cannot train one policy among several"),
        (("hand.py:Bot:player_1",), "", "hand.py: Bot is no algorithm; derive it from levada.Algorithm"),
        (("hand.py:none:player_1",), "", "got none(), which does not take two arguments (too many positional arguments)"),
        (("no.py:f:player_1",), "", "no file 'no.py'"),
        (("past:dqn:player_1",), "", "'past' is the past of 'dqn'; expected a policy that learns: ppo"),
        (("past:ppo:player_1", "b=past:ppo:player_1"), "", "'past' and 'b' are both the past of 'ppo'; expected one"),
        (("a b=dqn:player_1",), "", "the name is 'a b', expected letters, digits, _ and -, a letter first"),
        (("player_1:dqn",), "", "(policy='player_1:dqn'): expected [NAME=]WHO:AGENTS"),
        (("player_1:dqn",), "", "or path/to/file.py:FUNCTION; did you mean dqn:player_1?"),
        (("0=dqn:player_1",), "", "the name is '0', expected letters, digits, _ and -, a letter first"),
        (("dqn:player_1,player_1",), "", "agent 'player_1' is named twice; name each agent once"),
        (("dqn:x:player_1",), "", "got 'dqn:x', an algorithm with a colon; expected dqn:AGENTS"),
        (("nfsp:player_1",), "", "policy 'nfsp': NFSP trains two policies, which act for all players"),
        (("hand.py:anything:player_1",), "anything.size=1", "policy 'anything' is not trained here, and has no fields"),
        (("past:ppo:player_1",), "past.sizes=3", "Keeping has no field 'sizes'"),
        (("past:ppo:player_1",), "past.size=0", "Keeping(size=0): expected an integer >= 1"),
        (("past:ppo:player_1",), "past.win_rate=None", "no version would join; expected win_rate or every in Keeping"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_anything_starts(policies, kwargs, message, inside, tmp_path, capsys):
    assert train("ppo:player_0", *policies, out=tmp_path / "run", kwargs=kwargs) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_that_names_another_needs_it(inside, tmp_path, capsys):
    run, other = tmp_path / "run", tmp_path / "other"
    assert train(f"ppo:{BOTH}", out=other) == 0
    assert train("ppo:player_0", f"frozen:{other}:player_1", out=run) == 0
    rows = levada.cross_play([run, other], num_episodes=4)
    assert [(row.run == str(run), row.against == str(run), row.side[0][-1]) for row in rows] == [
        (True, False, "0"),
        (False, True, "1"),
        (False, False, "0"),
        (False, False, "1"),
    ]  # the run has not learned to be player 1
    with pytest.raises(LoadError, match=r"no two runs fill all sides, player_0, player_1: .*run plays for player_0$"):
        levada.cross_play([run])
    with pytest.raises(
        ConfigError, match=r"run is given twice; expected different runs, each of which also plays against its"
    ):
        levada.cross_play([run, run])
    other.rename(tmp_path / "moved")
    assert main(["eval", str(run)]) == 2
    assert "there is no run at" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"the run of policy 'frozen' is not loaded; expected levada\.train"):
        MultiAgent(policy=("ppo:player_0", "frozen:one:player_1")).flow(levada.Task(ENV))


def test_a_frozen_policy_plays_as_it_was_when_the_run_began(inside, tmp_path, capsys):
    """Its own run is trained further: the other resumes to the same bits as if it had not been."""
    old, runs = tmp_path / "old", [tmp_path / "undisturbed", tmp_path / "disturbed"]
    assert train(f"ppo:{BOTH}", out=old) == 0
    for run in runs:
        assert train("ppo:player_0", f"frozen:{old}:player_1", out=run) == 0
    assert main(["resume", str(runs[0]), "--until", "updates=4", "--quiet"]) == 0
    means = [evaluated(runs[1], capsys)["frozen"]["return_mean"]]
    assert main(["resume", str(old), "--until", "updates=9", "--quiet"]) == 0
    means.append(evaluated(runs[1], capsys)["frozen"]["return_mean"])
    assert means[0] == means[1]
    assert main(["resume", str(runs[1]), "--until", "updates=4", "--quiet"]) == 0
    hashes = {json.loads((run / "summary.json").read_text())["params_sha256"] for run in runs}
    assert len(hashes) == 1


def test_what_a_frozen_policy_was_is_not_known_or_does_not_fit(inside, tmp_path, capsys):
    """A run that ended before its first checkpoint, or whose opponent was trained anew with another network."""
    old, run = tmp_path / "old", tmp_path / "run"
    assert train(f"ppo:{BOTH}", out=old) == 0
    assert train("ppo:player_0", f"frozen:{old}:player_1", out=run) == 0
    assert main(["resume", str(old), "--until", "updates=4", "--quiet"]) == 0
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    capsys.readouterr()
    assert main(["resume", str(run), "--until", "updates=4", "--quiet"]) == 2
    assert (
        f"before its first checkpoint, which keeps what plays in it: was {old} (policy 'frozen')"
        in capsys.readouterr().err
    )
    shutil.rmtree(run)
    assert train("ppo:player_0", f"frozen:{old}:player_1", out=run) == 0
    shutil.rmtree(old)
    words = (
        f"train multi --env {ENV} --policy ppo:{BOTH} --num-envs 4 --num-steps 16 --quiet --until updates=1 --out {old}"
    )
    assert main([*words.split(), "--policy-kwargs", *SMALL.replace("[8]", "[4]").split()]) == 0
    assert main(["resume", str(run), "--until", "updates=4", "--quiet"]) == 2
    assert f"policy 'frozen': {old} has another network than when its policy began to play" in capsys.readouterr().err


def test_a_function_that_shares_an_agent_with_a_learner_plays(inside, tmp_path, capsys):
    """In every second episode of each environment: 2 of 5 in each of 8."""
    run = tmp_path / "run"
    assert train("ppo:player_0,player_1", "hand.py:anything:player_0", out=run, until="updates=4") == 0
    capsys.readouterr()
    found = evaluated(run, capsys)
    assert (found["anything"]["episodes"], found["ppo"]["episodes"]) == (16, 64)
