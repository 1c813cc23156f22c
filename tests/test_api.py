"""`levada.train`, `load` and `evaluate`: every kind of task and algorithm through the same door."""

import dataclasses
import json
import pickle
import sys
import warnings
from dataclasses import dataclass
from xml.etree import ElementTree

import gymnasium
import msgspec
import numpy as np
import pytest
import torch
from support.envs import small as small_envs
from support.runs.cli import TINY_FIELDS, Shell

import levada
from levada import PPO, Task
from levada.algorithms.checks import ConfigError
from levada.algorithms.presets import PRESETS
from levada.algorithms.sac import SAC
from levada.api import LoadError, build, configure
from levada.api.load import read_config
from levada.rl.acting.actor import Actor
from levada.rl.compute.threads import set_threads
from levada.run.storage.checkpoint import CheckpointWarning, list_checkpoints, newest, save, sealed
from levada.run.storage.directory import RunDirectory
from levada.run.user_exit import ExitError

USER_FILE = '''"""PPO with a network of the user's own."""

from dataclasses import dataclass

from torch import nn
from levada import PPO, Flow, Learner, Policy, Queue, Sampler
from levada.algorithms.gae import GAE
from levada.algorithms.ppo import PPOLoss


class Net(nn.Module):
    def __init__(self, space, num_params, width=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(space.shape[0], width), nn.ReLU())
        self.policy, self.value = nn.Linear(width, num_params), nn.Linear(width, 1)

    def forward(self, obs):
        features = self.body(obs)
        return self.policy(features), self.value(features).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class Mine(PPO):
    """Configuration of Mine."""

    bonus: float = 0.5
    """Not used."""

    def flow(self, task):
        policy = Policy(observation_space=task.observation_space, action_space=task.action_space, network=Net)
        learner = Learner(policy=policy, loss=PPOLoss(self), coefficients=self.coefficients, compile=self.compile,
                          num_epochs=self.num_epochs, minibatch_size=self.minibatch_size)
        sampler = Sampler(task=task, policy=policy, num_envs=self.num_envs, num_steps=self.num_steps)
        flow = Flow("mine")
        weights = flow.latest("weights", of=learner)
        rollouts = flow.source("rollout", sampler, reads=weights)
        advantages = flow.map("gae", GAE(discount=self.discount, lambda_=self.gae_lambda), rollouts)
        update = flow.learn("learn", learner, flow.batch("batch", advantages.via(Queue(max_lag=self.max_lag)), size=1))
        flow.publish(update.weights, to=weights)
        flow.report(update.stats)
        return flow
'''


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(algorithm="ppo", env="CartPole-v1", **more):
    settings = {"until": "updates=2", "display": "quiet", "log": "none", **TINY_FIELDS, **more}
    return levada.train(algorithm, env, **settings)


def observations(env, num=20, seed=5):
    """What an environment shows under random actions."""
    made = gymnasium.make(env) if isinstance(env, str) else env()
    obs, _ = made.reset(seed=seed)
    made.action_space.seed(seed)
    seen = [obs]
    while len(seen) < num:
        obs, _, terminated, truncated, _ = made.step(made.action_space.sample())
        seen.append(made.reset()[0] if terminated or truncated else obs)
    made.close()
    return seen


# ---- a run and its policy


def test_a_result_has_the_summary_the_policy_and_the_path(tmp_path):
    run = train(out=tmp_path / "run", seed=4)
    assert run.path == tmp_path / "run"
    assert run.summary == levada.load(run.path).summary
    assert (run.summary.seed, run.summary.stopped_by) == (4, "updates=2")
    assert run.policy.version == 2
    assert run.task.name == "CartPole-v1"
    assert run.flow.hash() == run.summary.flow_hash
    action = run.policy.act(np.zeros(4, np.float32))
    assert gymnasium.spaces.Discrete(2).contains(action)


def test_a_result_is_printed_in_three_lines():
    result = train()
    which, came_of_it, where = str(result).splitlines()
    assert which == "ppo on CartPole-v1, seed 0, inline"
    assert came_of_it.startswith(f"stopped by updates={result.summary.updates} | return ")
    assert where == str(result.path)
    assert repr(result) == str(result)


def test_a_result_and_its_summary_are_tables_in_a_notebook(tmp_path):
    result = train(out=tmp_path / "<b> & ü")
    env, note = "<script>alert(1)</script>", "a <note>"
    result = dataclasses.replace(result, summary=msgspec.structs.replace(result.summary, env=env, notes=[note]))
    for shown in (result, result.summary, levada.load(result.path)):
        html = shown._repr_html_()
        table = {row[0].text: row[1].text for row in ElementTree.fromstring(html).iter("tr")}
        assert (table["algorithm"], table["seed"]) == ("ppo", "0")
        assert "<script" not in html
    rows = {row[0].text: row[1].text for row in ElementTree.fromstring(result._repr_html_()).iter("tr")}
    assert (rows["environment"], rows["note"], rows["version"]) == (env, note, "2 updates")
    assert rows["directory"] == str(tmp_path / "<b> & ü")
    assert rows["return"].endswith("episode)")
    disturbed = dataclasses.replace(result, summary=msgspec.structs.replace(result.summary, num_started_from_scratch=2))
    assert "2 x a shard or a table started over" in disturbed._repr_html_()


def test_a_count_of_minibatches_is_their_size_which_follows_the_number_of_environments():
    (count, settings), (size, _) = (
        configure("ppo", "CartPole-v1", {name: 64}) for name in ("num_minibatches", "minibatch_size")
    )
    assert (count.minibatch_size, count.resolved_minibatch_size, settings["minibatch_size"].origin) == (
        None,
        4,
        "default",
    )
    assert (size.num_minibatches, size.resolved_minibatch_size) == (None, 64)
    assert dataclasses.replace(count, num_envs=16).resolved_minibatch_size == 8
    assert PPO().resolved_minibatch_size == 256
    assert PPO(num_envs=2, num_steps=32).resolved_minibatch_size == 64, "the whole batch"
    assert (
        configure("ppo", "CartPole-v1", {})[0].resolved_minibatch_size
        == PRESETS["ppo"]["CartPole-v1"]["minibatch_size"]
    )
    fields = {name: value for name, value in TINY_FIELDS.items() if name != "minibatch_size"}
    by_size, by_count = (
        levada.train("ppo", "CartPole-v1", until="updates=2", display="quiet", log="none", **fields, **given).summary
        for given in ({"minibatch_size": 8}, {"num_minibatches": 4})
    )
    assert by_size.params_sha256 == by_count.params_sha256


def test_the_same_seed_twice_learns_the_same_bits():
    first, second, other = (train(seed=seed).summary for seed in (1, 1, 2))
    assert first.params_sha256 == second.params_sha256 != other.params_sha256
    assert first.flow_hash == second.flow_hash == other.flow_hash


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_loaded_policy_acts_as_the_one_that_was_trained(env):
    run = train(env=env, normalize_obs=True)
    loaded = levada.load(run.path)
    for obs in observations(env):
        np.testing.assert_array_equal(run.policy.act(obs), loaded.policy.act(obs))
    for name, array in run.policy.weights.items():
        np.testing.assert_array_equal(array, loaded.policy.weights[name])


def test_act_is_what_the_trained_module_does_normalization_included():
    """Through torch, as in training: the observation is shifted and scaled by the statistics that were learned."""
    run = train(env="Pendulum-v1", normalize_obs=True, normalize_reward=True, until="updates=4")
    module = run.policy.policy.module(seed=9)
    module.load_state_dict({name: torch.tensor(array) for name, array in run.policy.weights.items()})
    assert float(run.policy.weights["normalizers.0.count"]) == 4 * 32
    assert not np.allclose(run.policy.weights["normalizers.0.var"], 1.0, atol=0.05)
    low, high = run.task.action_space.low, run.task.action_space.high
    changed = 0
    raw = dict(run.policy.weights) | {
        "normalizers.0.mean": np.zeros(3, np.float32), "normalizers.0.var": np.ones(3, np.float32)
    }  # fmt: skip
    without = type(run.policy)(run.policy.policy, raw, version=4)
    for obs in observations("Pendulum-v1"):
        distribution, _ = module(torch.from_numpy(obs)[None])
        expected = np.clip(distribution.mode().detach().numpy()[0], low, high)
        np.testing.assert_allclose(run.policy.act(obs), expected, rtol=1e-5, atol=1e-6)
        changed += not np.allclose(without.act(obs), expected, atol=1e-4)
    assert changed > 10


def test_sampled_actions_are_those_of_a_sampler_with_the_same_noise():
    run = train(env="Pendulum-v1", normalize_obs=True)
    policy = type(run.policy)(run.policy.policy, run.policy.weights, version=2, seed=11)
    actor, rng = Actor(run.policy.policy), np.random.default_rng(11)
    actor.load(run.policy.weights)
    for obs in observations("Pendulum-v1", num=5):
        batch = obs[None].astype(np.float32)
        drawn = actor.sample(batch, actor.head.draw(rng, 1, 1)[0])[0]
        expected = np.clip(drawn, run.task.action_space.low, run.task.action_space.high)
        np.testing.assert_allclose(policy.act(obs, deterministic=False), expected, rtol=1e-6)


def test_a_torn_summary_does_not_keep_the_checkpoints_from_being_used(capsys):
    run = train()
    whole = (run.path / "summary.json").read_bytes()
    (run.path / "summary.json").write_bytes(whole[:50])
    with pytest.warns(CheckpointWarning, match=r"summary.json is torn or was edited.*read from its newest checkpoint"):
        loaded = levada.load(run.path)
    assert (loaded.summary.stopped_by, loaded.summary.updates, loaded.policy.version) == ("cut off", 2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # not an error, as everywhere else in the tests
        done = Shell(capsys)(f"eval {run.path} --episodes 2")
    assert done.code == 0
    assert "levada: warning: " in done.err
    assert "summary.json is torn" in done.err


@pytest.mark.parametrize("monitor", [7, {"updates": 1}])
def test_a_checkpoint_with_another_monitor_is_refused(monitor):
    run = train()
    (run.path / "summary.json").unlink()
    meta = run.path / "checkpoints" / "000000002" / "meta.json"
    record = json.loads(meta.read_bytes())
    record["meta"]["monitor"] = monitor
    meta.write_text(json.dumps(sealed(record)))
    with (
        pytest.warns(CheckpointWarning, match="has another 'monitor' than a run saves"),
        pytest.raises(LoadError, match="has no valid checkpoint"),
    ):
        levada.load(run.path)


def test_a_result_is_not_its_directory():
    with pytest.raises(LoadError, match=r"path is a Result.*the directory of a Result is its `path`"):
        levada.load(train())


@pytest.mark.parametrize("read", [levada.load, levada.resume])
def test_what_is_no_path_is_refused(read):
    with pytest.raises(
        LoadError, match=f"levada.{read.__name__}: path is a int, expected the directory of a run as str or Path"
    ):
        read(3)


def test_the_version_is_that_of_the_policy_and_not_the_step_of_the_checkpoint():
    """Of several policies the one with most updates gives the step its number."""
    run = train()
    saved = newest(run.path)
    meta = {step: saved.meta | {"monitor": saved.meta["monitor"] | {"updates": step}} for step in (9, 10)}
    save(run.path, 9, saved.arrays, meta[9], flow_hash=saved.flow_hash)
    assert levada.load(run.path).policy.version == run.policy.version == 2
    without = {name: array for name, array in saved.arrays.items() if "counts" not in name}
    save(run.path, 10, without, meta[10], flow_hash=saved.flow_hash)
    with pytest.warns(CheckpointWarning, match="lacks the counts of learner 'learn'"):
        assert levada.load(run.path).policy.version == 2


# ---- every kind of task


@pytest.mark.parametrize(
    "kind", ["Plain", "DictObs", "TupleObs", "MultiDiscreteAction", "MultiBinaryAction", "BoxAction", "Masked"]
)
def test_every_kind_of_space_trains_loads_and_acts(kind):
    env = f"support.envs.small:Small{kind}-v0"
    run = train(env=env)
    assert (run.summary.updates, run.summary.env) == (2, env)
    loaded = levada.load(run.path)
    space = getattr(small_envs, kind).action_space
    for obs in observations(getattr(small_envs, kind)) if kind != "Masked" else masked_observations():
        action = run.policy.act(obs)
        assert space.contains(action.astype(space.dtype) if isinstance(action, np.ndarray) else action)
        np.testing.assert_array_equal(action, loaded.policy.act(obs))
    assert levada.evaluate(run, num_episodes=3).returns.shape == (3,)


def masked_observations():
    rng = np.random.default_rng(0)
    for _ in range(50):
        mask = np.zeros(5, np.int8)
        mask[rng.choice(5, 2, replace=False)] = 1
        yield {"obs": rng.uniform(-1, 1, 2).astype(np.float32), "action_mask": mask}


def test_a_masked_action_is_never_chosen():
    """The environment refuses it in training (640 steps); here the policy is asked directly."""
    run = train(env=small_envs.Masked, until="updates=20")
    for obs in masked_observations():
        chosen = {int(run.policy.act(obs, deterministic=False)) for _ in range(20)} | {int(run.policy.act(obs))}
        assert chosen <= set(np.flatnonzero(obs["action_mask"]))


def test_a_callable_and_what_load_needs_of_it():
    run = train(env=small_envs.Plain)
    assert run.summary.env == "Plain"
    settings = json.loads((run.path / "config.json").read_bytes())["settings"]
    assert settings["env"] == {"value": {"callable": "Plain"}, "from": "argument"}
    with pytest.raises(
        LoadError, match=r"trained on the callable Plain: give it, as in levada.load\(path, env=Plain\)"
    ):
        levada.load(run.path)
    obs = small_envs.Plain().reset(seed=0)[0]
    assert levada.load(run.path, env=small_envs.Plain).policy.act(obs) == run.policy.act(obs)


def test_a_vector_environment():
    def make(num_envs):
        return gymnasium.make_vec("CartPole-v1", num_envs=num_envs)

    assert train(env=make).summary.updates == 2


def test_arguments_of_the_environment_are_kept():
    run = train(env=Task("support.envs.small:SmallBoxAction-v0", env_kwargs={"scale": 100.0}))
    loaded = levada.load(run.path)
    assert loaded.task.env_kwargs == {"scale": 100.0}
    returns = levada.evaluate(loaded, num_episodes=2).returns
    np.testing.assert_array_equal(returns, levada.evaluate(run, num_episodes=2).returns)


# ---- every kind of algorithm


def test_a_users_file_with_a_network_of_its_own(tmp_path):
    (tmp_path / "mine.py").write_text(USER_FILE)
    run = train("mine.py:Mine", bonus=2.5)
    assert run.summary.algorithm == "Mine"
    assert run.policy.weights["network.body.0.weight"].shape == (5, 4)
    config = json.loads((run.path / "config.json").read_bytes())["settings"]
    assert config["bonus"] == {"value": 2.5, "from": "argument"}
    assert config["algorithm_class"]["value"] == f"{tmp_path}/mine.py:Mine"
    loaded = levada.load(run.path)
    for obs in observations("CartPole-v1"):
        assert run.policy.act(obs) == loaded.policy.act(obs)


@dataclass(frozen=True, kw_only=True)
class Layered(PPO):
    """Fields of every kind that JSON can hold."""

    @dataclass(frozen=True)
    class Inner:
        scale: float = 1.0
        names: tuple[str, ...] = ("a",)

    inner: Inner = Inner()
    table: dict[str, int] = dataclasses.field(default_factory=lambda: {"x": 1})
    limit: float = 1.0


def test_fields_are_read_back_as_they_were():
    config = Layered(inner=Layered.Inner(2.0, ("b", "c")), table={"y": 2}, limit=float("inf"), **TINY_FIELDS)
    run = levada.train(config, "CartPole-v1", until="updates=1", display="quiet", log="none")
    settings = json.loads((run.path / "config.json").read_bytes())["settings"]
    assert {settings[field.name]["from"] for field in dataclasses.fields(Layered)} == {"argument"}
    read = read_config(RunDirectory.open(run.path), None)
    assert read == config


def test_a_field_that_cannot_be_read_back_is_named():
    @dataclass(frozen=True, kw_only=True)
    class Scheduled(PPO):
        when: complex = 1j

    run = train(Scheduled)
    with pytest.raises(LoadError, match=r"when of Scheduled was saved as '1j'.*levada.load\(path, algorithm=Scheduled"):
        levada.load(run.path, algorithm=Scheduled)
    assert levada.load(run.path, algorithm=Scheduled(**TINY_FIELDS)).policy.version == 2


@pytest.mark.parametrize(("qualname", "where"), [("Scripted", "a script"), ("main.<locals>.Scripted", "a function")])
def test_a_class_that_cannot_be_imported_must_be_given(qualname, where):
    @dataclass(frozen=True, kw_only=True)
    class Scripted(PPO):
        pass

    Scripted.__qualname__ = qualname
    if where == "a script":
        Scripted.__module__ = "__main__"
    run = train(Scripted)
    with pytest.raises(LoadError, match=rf"a class of {where}.*give it, as in levada.load\(path, algorithm=Scripted\)"):
        levada.load(run.path)
    assert levada.load(run.path, algorithm=Scripted).policy.version == 2


def test_a_configuration_goes_before_the_preset_and_arguments_before_both():
    tuned = PRESETS["ppo"]["CartPole-v1"]["learning_rate"]
    plain, settings = configure("ppo", "CartPole-v1", {"discount": 0.5})
    assert (plain.learning_rate, plain.discount, plain.entropy_coef) == (tuned, 0.5, 0.0)
    assert [settings[name].origin for name in ("learning_rate", "discount", "entropy_coef")] == [
        "preset",
        "argument",
        "default",
    ]
    given, settings = configure(PPO(learning_rate=0.1), "CartPole-v1", {"discount": 0.5})
    assert (given.learning_rate, given.num_steps, given.discount) == (0.1, 128, 0.5)
    assert {setting.origin for setting in settings.values()} == {"argument"}
    assert configure(PPO, Task("CartPole-v1"), {})[0] == configure("ppo", "CartPole-v1", {})[0]


# ---- how it runs


def test_another_deployment_and_instruments(tmp_path):
    seen = []

    class Counts:
        def on_event(self, event):
            seen.append(type(event).__name__)

    place = levada.Inline(adversary=3)
    run = train(on=place, max_lag=1, until="updates=8", instruments=[Counts()], out=tmp_path / "run")
    assert run.summary.deployment == "inline,adversary=3"
    assert run.summary.lag["gae->batch"].bound == 1
    assert run.summary.lag["gae->batch"].max <= 1
    assert {"Fired", "Consumed", "Reported"} <= set(seen)
    assert levada.load(tmp_path / "run").policy.version == 8


def test_what_an_environment_raises_keeps_its_type_and_gets_notes():
    with pytest.raises(ZeroDivisionError) as caught:
        train(env="support.envs.broken:BrokenRaisesInStep-v0")
    notes = "\n".join(caught.value.__notes__)
    assert "env 0 of 2, step 5" in notes
    assert "node 'rollout'" in notes
    assert caught.traceback[-1].name == "broken"


def test_a_run_that_fails_has_its_traceback_in_a_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(env="support.envs.broken:BrokenRaisesInStep-v0", out=tmp_path / "run")
    text = (tmp_path / "run" / "error.txt").read_text()
    assert text.startswith("Traceback (most recent call last)")
    assert "return 1 / 0" in text
    assert "env 0 of 2, step 5" in text


def test_an_environment_that_calls_exit_is_an_error(tmp_path):
    class Exits(small_envs.Plain):
        def step(self, action):
            sys.exit(3)

    with pytest.raises(ExitError, match=r"sys\.exit\(3\) was called by the environment") as caught:
        train(env=Exits, out=tmp_path / "run")
    assert "node 'rollout'" in "\n".join(caught.value.__notes__)
    assert "sys.exit(3)" in (tmp_path / "run" / "error.txt").read_text()


def test_a_value_error_of_an_environment_is_not_taken_for_a_mistake():
    def make():
        raise ValueError("level 7 is broken")

    with pytest.raises(ValueError, match="level 7") as caught:
        build(PPO(), Task(make))
    assert not isinstance(caught.value, levada.LevadaError)
    with pytest.raises(ConfigError, match="hidden_sizes"):
        build(PPO(hidden_sizes=(0,)), Task("CartPole-v1"))


@pytest.mark.parametrize("on", ["inline", "threads:2", "processes:1", "processes:2", "processes:2,inference=learner"])
@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(num_envs=16, num_steps=128, minibatch_size=2048, hidden_sizes=(64, 64), shards=2),
        SAC(hidden_sizes=(1024, 1024), batch_size=256, shards=2),
    ],
)
def test_learning_has_the_same_threads_wherever_it_runs(monkeypatch, algorithm, on):
    """Small or large, inline or beside workers, on few cores or many: the number of threads has a say in the bits."""
    taken = []

    def execute(job):
        taken.append(job.options.threads)
        raise RuntimeError("that is all")

    monkeypatch.setattr("levada.api.run.Job.execute", execute)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    with pytest.raises(RuntimeError, match="that is all"):
        levada.train(algorithm, "Pendulum-v1", on=on, display="quiet")
    assert taken == [1]


def test_threads_that_are_asked_for_are_taken():
    before = torch.get_num_threads()
    try:
        assert train(threads=2).summary.threads == 2
        assert torch.get_num_threads() == 2
    finally:
        set_threads(before)


@pytest.mark.parametrize("threads", ["auto", None, 0, 1.5, True])
def test_threads_are_a_number(threads):
    with pytest.raises(ConfigError, match=r"threads=.*: expected an integer >= 1"):
        train(threads=threads)


def test_evaluate_takes_a_run_or_its_directory_and_says_what_it_measured():
    run = train()
    of_run, of_path = (
        levada.evaluate(run, num_episodes=4, seed=2),
        levada.evaluate(str(run.path), num_episodes=4, seed=2),
    )
    assert of_run.returns.tolist() == of_path.returns.tolist()
    assert (of_run.version, of_run.deterministic, len(of_run.episodes)) == (2, True, 4)
    assert of_run.mean == pytest.approx(np.mean([episode.length for episode in of_run.episodes]))
    drawn = [
        levada.evaluate(run, num_episodes=8, seed=seed, deterministic=False).returns.tolist() for seed in (2, 2, 3)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_configuration_can_be_sent_to_another_process():
    for config in (PPO(), configure("ppo", "LunarLander-v3", {})[0]):
        assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files")
def test_a_finished_run_leaves_no_file_open():
    from pathlib import Path

    train()
    before = len(list(Path("/proc/self/fd").iterdir()))
    train(log="tensorboard")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_checkpoints_come_by_the_clock_unless_a_number_is_given(tmp_path, monkeypatch):
    def saved(name, **more):
        run = train(until="updates=25", out=tmp_path / name, **more)
        return [int(path.name) for path in list_checkpoints(run.path)]

    monkeypatch.setattr("levada.api.run._AUTO", (10, 1_000.0))
    assert saved("slow") == [25]
    monkeypatch.setattr("levada.api.run._AUTO", (10, 1e-9))
    assert saved("quick")[-1] == 25
    assert saved("counted", checkpoint_every_updates=10) == [10, 20, 25]
    assert saved("never", checkpoint_every_updates=None) == [25]
    with pytest.raises(ConfigError, match="checkpoint_every_updates='often'"):
        train(checkpoint_every_updates="often")
