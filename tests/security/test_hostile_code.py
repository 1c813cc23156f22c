"""A run that was made elsewhere is opened without executing what stands in it, unless the user trusts it."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support.runs import hostile as hostile_runs
from support.runs.cli import TINY, TINY_FIELDS, Shell, in_process

import levada
from levada.run.storage.directory import RunDirectory
from levada.run.storage.trust import UntrustedError, key_path

FIELDS = {"display": "quiet", "log": "none", **TINY_FIELDS}
EVIL = "from pathlib import Path\nPath('executed').touch()\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of this user, and what becomes of it where nobody interrupts it."""
    root = tmp_path_factory.mktemp("made")
    levada.train("ppo", "CartPole-v1", until="updates=3", seed=3, out=root / "run", **FIELDS)
    whole = levada.train("ppo", "CartPole-v1", until="updates=6", seed=3, out=root / "whole", **FIELDS)
    return root / "run", whole.summary.params_sha256


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """Where a copy of it lies, on the machine that it was made on."""
    shutil.copytree(made[0], tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def elsewhere(here, monkeypatch, tmp_path_factory):
    """The same on another machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("other-machine")))
    return here


@pytest.fixture
def shell(capsys):
    return Shell(capsys)


def forget(*modules):
    for name in modules:
        sys.modules.pop(name, None)


# ---- states of environments


def with_gadget(here, name, monkeypatch):
    """The states of all environments are replaced, by somebody who has not this machine's key."""
    data = hostile_runs.gadgets(here / "executed")[name]

    def change(arrays):
        for key in [key for key in arrays if key.startswith("shards/") and key.endswith("envs")]:
            head = arrays[key][: 8 + TINY_FIELDS["num_envs"]]  # steps, and which episodes ended
            arrays[key] = np.concatenate([head, np.frombuffer(data, np.uint8)])

    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(here / "attacker"))
        hostile_runs.edit_arrays(here / "run", change)


GADGETS = ["a function", "a wrapper that unpickles", "a tuple of such", "eval"]


@pytest.mark.parametrize("name", GADGETS)
@pytest.mark.filterwarnings("always::levada.run.storage.checkpoint.CheckpointWarning")
def test_a_crafted_state_of_environments_is_never_opened(here, shell, monkeypatch, name):
    with_gadget(here, name, monkeypatch)
    refused = shell("resume run --until updates=6 --quiet")
    assert refused.code == 2
    assert "was not written by you on this machine" in refused.err
    assert "--trust" in refused.err and "--fresh-episodes" in refused.err
    assert refused.err.count("\n") <= 3
    with pytest.raises(UntrustedError, match="fresh_episodes=True"):
        levada.resume("run", until="updates=6", display="quiet")
    assert shell("eval run --episodes 1").code == 0
    levada.load("run")
    done = shell("resume run --until updates=6 --fresh-episodes")
    assert done.code == 0
    assert "episodes start over in rollout 0 (fresh episodes were asked for)" in done.err
    assert not (here / "executed").exists()


def test_such_a_state_is_harmful(tmp_path):
    """Else the tests above would show nothing."""
    import pickle

    for number, (name, data) in enumerate(hostile_runs.gadgets(tmp_path / "executed").items()):
        (tmp_path / "executed").unlink(missing_ok=True)
        pickle.loads(data)
        assert (tmp_path / "executed").exists(), (number, name)


def test_a_run_of_another_machine_goes_on_if_it_is_trusted(elsewhere, made, shell):
    assert shell("resume run --until updates=6 --quiet").code == 2
    assert shell("resume run --until updates=6 --quiet --trust").code == 0
    assert levada.load("run").summary.params_sha256 == made[1]
    # what is saved now was written here
    assert shell("resume run --until updates=7 --quiet").code == 0


@pytest.mark.filterwarnings("ignore::levada.run.storage.checkpoint.CheckpointWarning")
def test_what_was_foreign_does_not_become_ours_by_resuming_without_it(elsewhere, shell, monkeypatch):
    with_gadget(elsewhere, "a wrapper that unpickles", monkeypatch)
    assert shell("resume run --until updates=4 --quiet --fresh-episodes").code == 0
    assert shell("resume run --until updates=6 --quiet").code == 0
    assert not (elsewhere / "executed").exists()


def test_a_refused_resume_writes_nothing(elsewhere, shell):
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    assert shell("resume run --until updates=6 --quiet").code == 2
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before


def test_a_run_of_this_machine_goes_on_without_being_asked(here, made, shell):
    done = shell("resume run --until updates=6 --quiet")
    assert (done.code, done.err) == (0, "")
    assert levada.load("run").summary.params_sha256 == made[1]


# ---- code that config.json names

NAMES = [
    ("algorithm_class", "{run}/evil_file.py:X"),
    ("algorithm_class", "evil_module:X"),
    ("algorithm_class", "levada.cli.__main__:X"),
    ("env", "{run}/evil_file.py:CartPole-v1"),
    ("env", "evil_module:CartPole-v1"),
    ("env", "run.evil_module:CartPole-v1"),
    ("network", "evil_module:X"),
    ("network", "evil_module.X"),
    ("network", "{run}/evil_file.py:X"),
    ("network", "evil_module:0"),
]


@pytest.mark.parametrize(("setting", "name"), NAMES)
@pytest.mark.parametrize("command", ["eval run --episodes 1", "resume run --until updates=6 --quiet --fresh-episodes"])
def test_code_that_a_foreign_run_names_is_not_executed(elsewhere, shell, setting, name, command):
    for place in ("run/evil_file.py", "run/evil_module.py", "evil_module.py"):
        (elsewhere / place).write_text(EVIL)
    forget("evil_module", "evil_file", "run", "run.evil_module")
    hostile_runs.edit_config(
        elsewhere / "run", lambda values: values.update({setting: name.format(run=elsewhere / "run")})
    )
    done = shell(command)
    assert done.code == 2
    assert f"names code of its own: {setting} is" in done.err
    assert "--trust" in done.err
    assert done.err.count("\n") <= 3
    for call in (levada.load, levada.resume):
        with pytest.raises(UntrustedError, match="names code of its own"):
            call("run")
    assert not (elsewhere / "executed").exists()


def bring_elsewhere(tmp_path, monkeypatch, tmp_path_factory, shell):
    """Bring a run to another machine, which executes it, and put hostile code beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("other-machine")))
    assert shell("eval run --episodes 1").code == 0
    for place in ("run/evil_file.py", "evil_module.py"):
        (tmp_path / place).write_text(EVIL)
    forget("evil_module", "evil_file")


@pytest.mark.parametrize("change", [
    {"of": "evil_module:X"}, {"of": "{run}/evil_file.py:X"}, {"of_kwargs": {"network": "evil_module:X"}},
    {"of_kwargs": {"features_extractor": "evil_module.X"}}, {"of_kwargs": {"optimizer": "evil_module:X"}},
    {"of_kwargs": {"unknown": "evil_module:X"}},
], ids=str)  # fmt: skip
def test_nor_is_code_of_an_algorithm_inside_another(tmp_path, monkeypatch, tmp_path_factory, shell, change):
    monkeypatch.chdir(tmp_path)
    kwargs = {"num_envs": 2, "num_steps": 8, "minibatch_size": 16, "hidden_sizes": [4]}
    levada.train(
        "diloco", "CartPole-v1", of="ppo", of_kwargs=kwargs, num_local_updates=1, until="updates=1", out="run",
        display="quiet", log="none",
    )  # fmt: skip
    bring_elsewhere(tmp_path, monkeypatch, tmp_path_factory, shell)
    told = {
        name: x.format(run=tmp_path / "run") if isinstance(x, str) else {**kwargs, **x} for name, x in change.items()
    }
    hostile_runs.edit_config(tmp_path / "run", lambda values: values.update(told))
    done = shell("eval run --episodes 1")
    assert done.code == 2
    assert "names code of its own" in done.err
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("change", [
    {"policy": ["ppo=evil_module:X:player_0,player_1"]}, {"policy": ["ppo={run}/evil_file.py:X:player_0,player_1"]},
    {"policy": ["ppo:player_0", "act={run}/evil_file.py:X:player_1"]}, {"policy": ["ppo:player_0", "old=frozen:{run}:player_1"]},
    {"policy_kwargs": {"ppo.network": "evil_module:X"}}, {"policy_kwargs": {"ppo.optimizer": "evil_module:X"}},
    {"policy_kwargs": {"ppo.features_extractor": "evil_module.X"}}, {"policy_kwargs": {"other.unknown": "evil_module:X"}},
], ids=str)  # fmt: skip
def test_nor_is_code_of_one_of_several_policies(tmp_path, monkeypatch, tmp_path_factory, shell, change):
    monkeypatch.chdir(tmp_path)
    kwargs = {"ppo.minibatch_size": 16, "ppo.hidden_sizes": [4]}
    levada.train(
        "multi", "openspiel:kuhn_poker", policy=("ppo:player_0,player_1",), policy_kwargs=kwargs, num_envs=2, num_steps=8,
        until="updates=1", out="run", display="quiet", log="none",
    )  # fmt: skip
    bring_elsewhere(tmp_path, monkeypatch, tmp_path_factory, shell)
    told = {
        name: [text.format(run=tmp_path / "run") for text in value] if isinstance(value, list) else kwargs | value
        for name, value in change.items()
    }
    hostile_runs.edit_config(tmp_path / "run", lambda values: values.update(told))
    done = shell("eval run --episodes 1")
    assert done.code == 2
    assert "names code of its own" in done.err
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("env", [
    "gymnax.evil:CartPole-v1", "gymnax:evil_module:CartPole-v1", "gymnax:evil_module.X:Y", "gymnax:evil_file.py:X",
    "playground:CartpoleBalance", "playground.evil:X", "jax:CartPole-v1", "Gymnax:CartPole-v1",
])  # fmt: skip
def test_only_a_name_in_a_library_s_list_is_looked_up_without_trust(elsewhere, shell, env):
    (elsewhere / "evil_module.py").write_text(EVIL)
    Path("gymnax:evil_file.py").write_text(EVIL)
    hostile_runs.edit_config(elsewhere / "run", lambda values: values.update(env=env))
    done = shell("eval run --episodes 1")
    assert done.code == 2
    assert "names code of its own" in done.err
    assert not (elsewhere / "executed").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("gymnax") is None, reason="gymnax is not installed: pip install 'levada[jax]'"
)
def test_an_environment_in_jax_of_a_foreign_run_needs_no_trust(elsewhere, shell):
    hostile_runs.edit_config(elsewhere / "run", lambda values: values.update(env="gymnax:CartPole-v1"))
    done = shell("eval run --episodes 1")
    assert done.code == 0, done.err
    for unknown in ("gymnax:CartPole", "gymnax:"):  # looked up in the library's list as well, and not imported
        hostile_runs.edit_config(elsewhere / "run", lambda values, env=unknown: values.update(env=env))
        done = shell("eval run --episodes 1")
        assert done.code == 2
        assert "gymnax has no such environment" in done.err


def test_it_is_executed_if_the_run_is_trusted(elsewhere, shell):
    (elsewhere / "evil_module.py").write_text(EVIL)
    forget("evil_module")
    hostile_runs.edit_config(elsewhere / "run", lambda values: values.update(env="evil_module:CartPole-v1"))
    assert shell("eval run --episodes 1 --trust").code == 0
    assert (elsewhere / "executed").exists()


def test_what_the_user_names_is_not_asked_about(elsewhere):
    hostile_runs.edit_config(elsewhere / "run", lambda values: values.update(env="evil_module:CartPole-v1"))
    assert levada.load("run", env="CartPole-v1", algorithm=levada.PPO).summary.updates == 3


OWN = "import gymnasium\nfrom levada import PPO\n\nclass Mine(PPO):\n    pass\n"


def test_code_that_a_run_of_this_machine_names_needs_no_trust(here, shell):
    (here / "own_module.py").write_text(OWN)
    forget("own_module")
    train = f"train own_module:Mine --env own_module:CartPole-v1 {TINY} --until updates=2 --out mine --quiet"
    assert shell(train).code == 0
    assert shell("resume mine --until updates=3 --quiet").code == 0
    assert shell("eval mine --episodes 1").code == 0
    forget("own_module")


def test_code_inside_of_the_run_needs_trust_even_if_its_settings_were_written_here(here, shell, monkeypatch):
    """A run that one has published comes back with a module of that name in it."""
    (here / "own_module.py").write_text(OWN)
    forget("own_module")
    assert shell(f"train ppo --env own_module:CartPole-v1 {TINY} --until updates=2 --out mine --quiet").code == 0
    (here / "own_module.py").unlink()
    (here / "mine" / "own_module.py").write_text(EVIL + OWN)
    forget("own_module")
    monkeypatch.chdir(here / "mine")
    done = shell("eval . --episodes 1")
    assert done.code == 2
    assert "which stands in the run itself" in done.err
    assert not Path("executed").exists()
    forget("own_module")


def test_a_module_beside_a_foreign_run_takes_no_library_s_place(elsewhere):
    """In a process of its own, which has not imported MuJoCo yet, and looks for modules where it stands first."""
    hostile_runs.edit_config(elsewhere / "run", lambda values: values.update(env="HalfCheetah-v5"))
    for place in (elsewhere, elsewhere / "run"):
        (place / "ale_py.py").write_text(EVIL)
        (place / "mujoco.py").write_text(EVIL)
    for cwd, run in ((elsewhere, "run"), (elsewhere / "run", ".")):
        done = in_process(f"eval {run} --episodes 1", cwd=cwd)
        assert done.code == 2, done.err
        assert not (cwd / "executed").exists()


@pytest.mark.parametrize("kwargs", [{"xml_file": "/etc/passwd"}, {"render": {"x": ["~/a"]}}, {"module": "os:system"}])
def test_paths_in_the_keyword_arguments_of_a_foreign_run_need_trust(elsewhere, shell, kwargs):
    hostile_runs.edit_config(elsewhere / "run", lambda values: values.update(env_kwargs=kwargs))
    done = shell("eval run")
    assert done.code == 2
    assert "env_kwargs name a file or a module" in done.err


# ---- the key


def test_the_key_is_the_user_s_alone(here):
    path = key_path()
    assert path.is_relative_to(os.environ["XDG_STATE_HOME"])
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o600, 32)
    assert [p.name for p in path.parent.iterdir()] == ["key"]


def test_a_replaced_key_makes_older_runs_foreign(here, shell, monkeypatch, tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    shutil.copytree(Path(os.environ["XDG_STATE_HOME"]) / "levada", state / "levada")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert RunDirectory.open("run").is_ours
    key_path().write_bytes(bytes(32))
    assert not RunDirectory.open("run").is_ours
    assert "before the key here was replaced" in shell("resume run --until updates=6 --quiet").err


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda key: key.chmod(0o644), "others may read or write it"),
        (lambda key: key.write_bytes(b"short"), "it has not 32 bytes"),
        (lambda key: (key.rename(key.with_name("k")), key.symlink_to("k")), "it is a symbolic link"),
        (lambda key: (key.unlink(), key.mkdir()), "it is a directory"),
    ],
)
def test_a_key_that_others_may_know_is_not_used(here, shell, monkeypatch, tmp_path_factory, harm, why):
    state = tmp_path_factory.mktemp("state")
    shutil.copytree(Path(os.environ["XDG_STATE_HOME"]) / "levada", state / "levada")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    harm(key_path())
    done = shell("resume run --until updates=6 --quiet")
    assert done.code == 2
    assert why in done.err


@pytest.mark.parametrize("place", ["no home", "a file in the way"])
def test_without_a_place_for_a_key_a_process_knows_its_own_runs(here, shell, monkeypatch, place):
    """A container; the next process does not know them, and says why."""
    if place == "no home":
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(Path, "home", no_home)
        why = "there is no home directory"
    else:
        Path("state").write_text("no directory")
        monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
        why = "cannot be used: Not a directory"
    levada.train("ppo", "CartPole-v1", until="updates=2", out="contained", **FIELDS)
    levada.resume("contained", until="updates=3", display="quiet")
    monkeypatch.setattr("levada.run.storage.trust._of_this_process", bytes(32))
    done = shell("resume contained --until updates=4 --quiet")
    assert done.code == 2
    assert why in done.err
    assert shell("resume contained --until updates=4 --quiet --trust").code == 0


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_of_processes_that_make_the_key_at_once_one_wins(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from levada.run.storage import trust

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        signatures = list(pool.map(lambda _: trust.sign("test", b"data"), range(64)))
    assert len(set(signatures)) == 1
    assert [p.name for p in key_path().parent.iterdir()] == ["key"]


def test_a_signature_of_one_thing_is_not_that_of_another():
    from levada.run.storage import trust

    assert trust.is_ours("config", b"data", trust.sign("config", b"data"))
    assert not trust.is_ours("checkpoint", b"data", trust.sign("config", b"data"))
    for odd in (None, 5, "", "é", "0" * 64):
        assert not trust.is_ours("config", b"data", odd)


def test_an_edited_learning_rate_makes_the_settings_foreign_and_no_more(here, shell):
    hostile_runs.edit_config(here / "run", lambda values: values.update(learning_rate=1e-3))
    assert not RunDirectory.open("run").is_ours
    assert shell("eval run --episodes 1").code == 0
