"""Off-policy actor-critics with any observation: Dict, images, a feature extractor or an actor of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.ppo import PPO
from levada.algorithms.sac import SAC
from levada.algorithms.td3 import TD3
from levada.rl.acting.actor import Actor
from levada.rl.data.nest import map_nest
from levada.rl.data.spaces import SpaceError
from levada.rl.policies.layers import Vector
from levada.rl.policies.networks import Encoders
from levada.rl.policies.recurrent import RecurrentNet
from levada.rl.policies.user_networks import ModelError

PIXELS_ID = "support.envs.pixels:Pixels-v0"
QUICK: dict[str, Any] = {
    "num_steps": 4, "learning_starts": 16, "batch_size": 8, "num_gradient_steps": 2, "samples_per_insert": 4.0,
    "hidden_sizes": (16,),
}  # fmt: skip


class Goal(gymnasium.Env):
    """Move to a goal on a line: observations as of Gymnasium-Robotics."""

    observation_space = spaces.Dict({name: spaces.Box(-2.0, 2.0, (2,)) for name in ("achieved_goal", "desired_goal")} | {
        "observation": spaces.Dict({"speed": spaces.Box(-1.0, 1.0, (1,)), "gear": spaces.Discrete(3)}),
    })  # fmt: skip
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        self.num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.at = np.clip(self.at + 0.5 * action, -2.0, 2.0).astype(np.float32)
        self.num_steps += 1
        return self._obs(), -float(np.abs(self.at - self.goal).sum()), False, self.num_steps == 10, {}

    def _obs(self) -> Any:
        speed = np.zeros(1, np.float32)
        inner = {"speed": speed, "gear": self.num_steps % 3}
        return {"achieved_goal": self.at.copy(), "desired_goal": self.goal.copy(), "observation": inner}


class Pooled(nn.Module):
    """A small feature extractor for images."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.layer = nn.Linear(int(np.prod(space.shape)), 5)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs.flatten(1) / 255.0).relu()


class OwnActor(nn.Module):
    """An actor for vectors."""

    def __init__(self, space: spaces.Box, num_params: int) -> None:
        super().__init__()
        self.layer = nn.Linear(space.shape[0], num_params)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        params = self.layer(obs)
        return params, params[:, 0]


class OwnRecurrent(RecurrentNet):
    """A recurrent actor of the user's."""

    def __init__(self, space: Any, num_params: int) -> None:
        super().__init__(space, num_params, rnn_type="gru", rnn_size=6)


def same_number(space: Any) -> nn.Module:
    return nn.Flatten(0)


def wrong_input(space: Any) -> nn.Module:
    return nn.Linear(99, 4)


IMAGES = "support.envs.small:SmallImageBoxAction-v0"


@pytest.mark.parametrize("env", [Goal, IMAGES], ids=["goal", "images"])
@pytest.mark.parametrize("algorithm", ["sac", "td3", "ddpg", "apex_ddpg"])
def test_dicts_and_images_train_save_load_and_evaluate(tmp_path: Path, algorithm: str, env: Any) -> None:
    more = {"shards": 1, "tables": 1, "order": "admission", "tolerance": 0.0} if algorithm == "apex_ddpg" else {}
    fields = QUICK | more
    run = lv.train(algorithm, env, until="updates=4", seed=1, out=tmp_path / "run", display="quiet", **fields)
    again = lv.load(run.path, **({"env": env} if env is Goal else {}))
    observation, _ = (Goal() if env is Goal else gymnasium.make("support.envs.small:SmallImageBoxAction-v0")).reset(
        seed=1
    )
    assert np.array_equal(run.policy.act(observation), again.policy.act(observation))
    returns = [lv.evaluate(some, num_episodes=2, seed=1).returns for some in (run, again)]
    assert np.array_equal(*returns) and np.isfinite(returns[0]).all()


@pytest.mark.parametrize("env", [Goal, IMAGES], ids=["goal", "images"])
@pytest.mark.parametrize("kind", [SAC, TD3])
def test_losses_are_finite_and_every_network_learns(kind: type[SAC | TD3], env: Any) -> None:
    with lv.Inline().open(kind(**QUICK).flow(lv.Task(env)), seed=1) as run:
        learner, reports = run.node_state("learn"), []
        before = learner.state_dict()["step/params"].copy()
        for report in run:
            reports.append(report.values)
            if len(reports) == 4:
                break
        after = learner.state_dict()["step/params"]
        names = {"losses/critic_loss", "losses/actor_loss", "losses/q_values"}
        assert all(np.isfinite(values[name]) for values in reports for name in names & values.keys())
        assert names <= set().union(*reports)
        moved = learner._step.layout.views(torch.from_numpy(after != before))
        # convolutions and layers of actor and critics alike; a few inputs, such as a constant speed, teach nothing
        assert all(part.any() for name, part in moved.items() if name != "policy.log_std")  # TD3 has no use for it


@pytest.mark.parametrize("algorithm", [SAC(hidden_sizes=(16,)), TD3(hidden_sizes=(16,))])
@pytest.mark.parametrize("env", [Goal, IMAGES, "Pendulum-v1"], ids=["goal", "images", "vector"])
def test_acting_computes_what_the_learner_computes(algorithm: SAC | TD3, env: Any) -> None:
    policy = algorithm.flow(lv.Task(env)).learners()["learn"].policy
    module, space = policy.module(seed=1), policy.observation_space
    space.seed(1)
    rows = [space.sample() for _ in range(6)]
    obs = map_nest(lambda *leaves: np.stack(leaves), *rows)
    actor = Actor(policy)
    actor.load(policy.weights(module))
    with torch.no_grad():
        row, _ = module.row(map_nest(torch.from_numpy, obs))
    assert np.allclose(actor.params(obs), row.numpy(), rtol=1e-4, atol=1e-5)
    assert isinstance(module.network.encoder, Vector if env == "Pendulum-v1" else Encoders)


def test_actor_and_critics_have_a_feature_extractor_each() -> None:
    recipe = SAC(features_extractor=Pooled, hidden_sizes=(16,)).flow(lv.Task(IMAGES)).learners()["learn"]
    modules = recipe.modules(1)
    actor, critic = modules["policy"].network.encoder, modules["critic"].encoder
    assert type(actor) is type(critic) is Pooled
    assert actor is not critic
    assert modules["critic"].networks[0][0].in_features == 5 + 2
    assert modules["policy"].network.shared[0].in_features == 5


@pytest.mark.parametrize(("algorithm", "env"), [
    ("ppo", IMAGES), ("ppo", PIXELS_ID), ("dqn", PIXELS_ID), ("sac", PIXELS_ID),
    ("sac", IMAGES), ("td3", IMAGES), ("r2d2", PIXELS_ID), ("recurrent_sac", PIXELS_ID),
])  # fmt: skip
def test_a_feature_extractor_by_name_is_found_again(tmp_path: Path, algorithm: str, env: str) -> None:
    file = tmp_path / "features.py"
    file.write_text(
        "import numpy as np\nfrom torch import nn\n\n\ndef pooled(space):\n"
        "    return nn.Sequential(Floats(), nn.Flatten(), nn.Linear(int(np.prod(space.shape)), 5), nn.ReLU())\n\n\n"
        "class Floats(nn.Module):\n    def forward(self, obs):\n        return obs / 255.0\n"
    )
    fields = {"num_steps": 4, "minibatch_size": 32} if algorithm == "ppo" else QUICK
    if algorithm in ("r2d2", "recurrent_sac"):
        fields = fields | {"learning_starts": 4, "sequence_length": 4, "burn_in": 2, "batch_size": 4}
    run = lv.train(
        algorithm, env, until="updates=2", out=tmp_path / "run", display="quiet", features_extractor=f"{file}:pooled", **fields
    )  # fmt: skip
    assert any(array.shape[:1] == (5,) for array in run.policy.weights.values())
    again = lv.load(run.path)
    assert {name: array.tolist() for name, array in again.policy.weights.items()} == {
        name: array.tolist() for name, array in run.policy.weights.items()
    }


def test_an_actor_of_the_users(tmp_path: Path) -> None:
    run = lv.train("sac", "Pendulum-v1", until="updates=2", display="quiet", network=OwnActor, **QUICK)
    assert run.policy.weights["network.layer.weight"].shape == (2, 3)
    learner = run.flow.learners()["learn"]
    assert learner.modules(1)["critic"].networks[0][0].in_features == 3 + 1
    few = QUICK | {"learning_starts": 4, "sequence_length": 4, "burn_in": 2, "batch_size": 4}
    recurrent = lv.train(
        "recurrent_sac", "CartPole-v1", until="updates=2", display="quiet", network=OwnRecurrent, **few
    )
    assert recurrent.flow.learners()["learn"].policy.state_size == 6


@pytest.mark.parametrize(("features", "message"), [
    (Pooled(spaces.Box(0, 255, (2, 2, 2), np.uint8)), "features_extractor=Pooled is a module already, expected a class"),
    (OwnActor, r"features_extractor=OwnActor does not take one argument \(missing a required argument: 'num_params'\)"),
    (5, r"features_extractor=5 \(int\) cannot be called"),
    (same_number, r"features_extractor=same_number gives a tensor \[384\].*expected a float tensor \[2, F\].*nn.Flatten"),
    (wrong_input, "features_extractor=wrong_input cannot take 2 observations of Box"),
])  # fmt: skip
def test_what_is_no_feature_extractor_is_refused_before_anything_starts(
    tmp_path: Path, features: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        lv.train("sac", IMAGES, until="updates=1", out=tmp_path / "run", display="quiet", features_extractor=features)
    assert not (tmp_path / "run").exists()


def test_a_network_leaves_no_place_for_a_feature_extractor() -> None:
    with pytest.raises(ConfigError, match=r"PPO\(network=.*, features_extractor=...\): expected at most one of them"):
        PPO(network=OwnActor, features_extractor=Pooled)
    SAC(network=OwnActor, features_extractor=Pooled)  # that of the critics


def test_other_actions_are_refused_as_before() -> None:
    with pytest.raises(SpaceError, match="RecurrentSAC needs Discrete actions"):
        lv.train("recurrent_sac", IMAGES, until="updates=1", display="quiet")


def test_ppo_takes_images_with_box_actions_too() -> None:
    for network in (None, "levada.rl:RecurrentNet"):
        PPO(network=network, device="cpu").flow(lv.Task(IMAGES)).check()
