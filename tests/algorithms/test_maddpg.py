"""MADDPG: losses by hand, critics of all agents, relaxed discrete actions, and runs that are the same under every deployment."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs.multi import Relay, Shifts
from torch import nn

from levada.algorithms.checks import ConfigError
from levada.algorithms.maddpg import MADDPG, MADDPGLoss, acted
from levada.rl.acting.actor import Actor
from levada.rl.compute.functional import Net
from levada.rl.data.spaces import SpaceError
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError
from levada.rl.learning.loss import Networks
from levada.rl.policies.critic import JointCritic
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

AGENTS = ("agent_0", "agent_1", "agent_2", "agent_3")
SHIFTS = MultiAgentTask(Shifts, policies={"team": AGENTS})
SMALL = {
    "num_envs": 2, "num_steps": 8, "buffer_size": 512, "learning_starts": 64, "samples_per_insert": 2.0, "batch_size": 16,
    "hidden_sizes": (16,), "compile": False,
}  # fmt: skip


# ---- losses by hand


class Scaled(nn.Module):
    """An actor whose action is what an agent sees, times a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, obs):
        mean = self.weight * obs
        return SimpleNamespace(base=SimpleNamespace(mean=mean), squash=lambda outputs: outputs), mean


class Products(nn.Module):
    """Critics Q_0 = v a_0 a_1 + o_0 and Q_1 = v (a_0 + 2 a_1) + o_1, where agents that are not there act with 0."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, obs, action, there):
        action = action.squeeze(-1) * there
        of_actions = torch.stack([action[0].prod(dim=1), action[1] @ torch.tensor([1.0, 2.0])])
        return self.weight * of_actions + obs.squeeze(-1).T


def net(module: nn.Module) -> Net:
    return Net(module, dict(module.named_parameters()))


BY_HAND = {
    "obs": torch.tensor([[[1.0], [2.0]], [[3.0], [5.0]]]),
    "action": torch.tensor([[[2.0], [3.0]], [[4.0], [7.0]]]),
    "there": torch.tensor([[True, True], [True, False]]),
    "next_obs": torch.tensor([[[1.0], [3.0]], [[2.0], [0.0]]]),
    "next_there": torch.tensor([[True, True], [False, False]]),
    "reward": torch.tensor([[0.5, -1.0], [2.0, 9.0]]),
    "discount": torch.tensor([[0.5, 0.5], [0.0, 0.0]]),
}


def test_the_losses_by_hand():
    """With v = 3, w = 0.5, and 2 and 0.25 for the target networks; agent 1 is not there in the second transition."""
    actor, critic = Scaled(0.5), Products(3.0)
    networks = {"policy": net(actor), "critic": net(critic)}
    targets = {"policy": net(Scaled(0.25)), "critic": net(Products(2.0))}
    loss = MADDPGLoss(MADDPG(prioritized=True, output_penalty=0.1))
    found = loss(Networks(networks, targets), BY_HAND, {})
    # next actions (0.25, 0.75): Q'_0 = 2 * 0.25 * 0.75 + 1, Q'_1 = 2 * (0.25 + 1.5) + 3
    targets_0, targets_1 = np.array([0.5 + 0.5 * 1.375, 2.0]), np.array([-1.0 + 0.5 * 6.5, 0.0])
    # Q_0 = 3 * 2 * 3 + 1, and 3 * 4 * 0 + 3; Q_1 = 3 * (2 + 6) + 2
    errors = np.array([[19.0, 3.0] - targets_0, [26.0 - targets_1[0], 0.0]])
    critic_loss = (errors**2 / 2).mean(axis=1).sum()
    # own actions 0.5 and 1.0: Q_0 = 3 * 0.5 * 3 + 1, and 3 * 1.5 * 0 + 3; Q_1 = 3 * (2 + 2 * 1) + 2
    actor_loss = -((5.5 + 3.0) / 2 + 14.0 / 2)
    assert found.stats["critic_loss"].item() == pytest.approx(critic_loss)
    assert found.stats["actor_loss"].item() == pytest.approx(actor_loss)
    penalty = (0.5**2 + 1.5**2) / 2 + 1.0**2 / 2
    assert found.loss.item() == pytest.approx(critic_loss + actor_loss + 0.1 * penalty)
    np.testing.assert_allclose(found.priorities, np.abs(errors).mean(axis=0))
    of_actor, of_critic = torch.autograd.grad(found.loss, [actor.weight, critic.weight])
    # d Q_i / d a_i times o_i, with the other's replayed action: 3 * 3 * 1 and 3 * 2 * 2
    of_penalty = 0.1 * ((2 * 0.5 * 1.0 + 2 * 1.5 * 3.0) / 2 + 2 * 1.0 * 2.0 / 2)
    assert of_actor.item() == pytest.approx(-(9.0 / 2 + 12.0 / 2) + of_penalty)
    # of the critics' loss alone: error times d Q / d v
    assert of_critic.item() == pytest.approx((errors[0] * [6.0, 0.0]).mean() + errors[1, 0] * 8.0 / 2)


def test_discrete_actions_are_samples_of_the_policy_with_the_gradient_of_the_softmax():
    policy = Policy(observation_space=spaces.Box(-1.0, 1.0, (1,)), action_space=spaces.Discrete(3))
    logits = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    num = 40_000

    class Same(nn.Module):
        def forward(self, obs):
            return policy.head.distribution(logits.expand(len(obs), 3)), obs[:, 0]

    noise = torch.randn(num, 2, 3, generator=torch.Generator().manual_seed(0))
    found = acted(Net(Same(), {}), torch.zeros(num, 2, 1), 2, noise)
    assert found.action.shape == found.outputs.shape == (num, 2, 3)
    assert ((found.action.detach() - 1.0).abs() < 1e-6).sum() == 2 * num  # one-hot
    torch.testing.assert_close(found.action.detach().mean(dim=(0, 1)), logits.softmax(0).detach(), atol=5e-3, rtol=0.0)
    [slope] = torch.autograd.grad(found.action[..., 0].mean(), logits)
    uniform = torch.special.ndtr(noise.double())
    soft = (logits.detach() - (-uniform.log()).log()).softmax(dim=-1)
    expected = (soft[..., :1] * (torch.eye(3)[0] - soft)).mean(dim=(0, 1))
    torch.testing.assert_close(slope, expected.float(), atol=1e-4, rtol=1e-3)


# ---- critics


def policy_of(action_space: spaces.Space) -> Policy:
    return Policy(observation_space=spaces.Box(-1.0, 1.0, (3,)), action_space=action_space)


@pytest.mark.parametrize(("space", "size"), [(spaces.Discrete(4), 4), (spaces.Box(-1.0, 1.0, (2, 3)), 6)])
def test_each_agent_has_a_critic_that_sees_all_who_are_there(space, size):
    critic = JointCritic(policy_of(space), 3, hidden_sizes=(8,))
    there = torch.tensor([[True, True, False]] * 5)
    obs, action = torch.rand(5, 3, 3), torch.rand(3, 5, 3, size)
    values = critic(obs, action, there)
    assert values.shape == (3, 5)
    for agent in range(3):
        changed = [torch.where(torch.arange(3)[:, None] == agent, 9.0, some) for some in (obs, action)]
        for one, other in ((changed[0], action), (obs, changed[1])):
            assert torch.equal(critic(one, other, there), values) == (agent == 2)
        own = action.clone()
        own[agent] += 1.0  # the joint actions that only one critic is given
        assert (critic(obs, own, there) != values).any(dim=1).tolist() == [k == agent for k in range(3)]


def test_critics_of_other_actions_are_refused():
    with pytest.raises(SpaceError, match=r"JointCritic: needs a Box or Discrete action space, got MultiBinary\(2\)"):
        JointCritic(policy_of(spaces.MultiBinary(2)), 2)


class Masked(Shifts):
    """`Shifts` in which agent k must not take action k % 3."""

    def observation_space(self, agent: str):
        return spaces.Dict({"obs": super().observation_space(agent), "action_mask": spaces.MultiBinary(3)})

    def _obs(self, k: int):
        return {"obs": super()._obs(k), "action_mask": (np.arange(3) != k % 3).astype(np.int8)}

    def step(self, actions):
        assert all(action != int(agent[-1]) % 3 for agent, action in actions.items())
        return super().step(actions)


class Boxes(Shifts):
    """`Shifts` with continuous actions."""

    def action_space(self, agent: str):
        return spaces.Box(-1.0, 2.0, (2,))


def learner_of(env):
    hp = MADDPG(**SMALL)
    return hp.part(MultiAgentTask(env, policies={"team": AGENTS}, agent_id=True)["team"], "team").learner.open(3)


@pytest.mark.parametrize("env", [Shifts, Boxes])
def test_an_agent_that_has_left_does_not_change_what_is_learned(env):
    """Whatever is in its rows."""
    rng = np.random.default_rng(0)
    batch = {name: rng.normal(size=(16, 4, 7)).astype(np.float32) for name in ("obs", "next_obs")}
    batch |= {name: rng.random((16, 4)) < 0.6 for name in ("there", "next_there")}
    batch["reward"] = rng.normal(size=(16, 4)).astype(np.float32) * batch["there"]
    batch["discount"] = np.float32(0.9) * batch["next_there"].astype(np.float32)
    batch["action"] = rng.integers(0, 3, (16, 4)) if env is Shifts else rng.random((16, 4, 2), np.float32)
    other = {name: column.copy() for name, column in batch.items()}
    for name, there in (("obs", "there"), ("next_obs", "next_there"), ("reward", "there")):
        other[name][~batch[there]] = 100 * rng.normal(size=other[name][~batch[there]].shape)
    other["action"][~batch["there"]] = 2
    found = []
    for columns in (batch, other, batch | {"there": np.ones_like(batch["there"])}):
        learner = learner_of(env)
        found.append((learner.update([Transitions(columns)]).stats, params_sha256(learner.weights())))
    q_values = [stats.pop("losses/q_values") for stats, _ in found]  # of all, as they are
    assert found[0] == found[1] != found[2]
    assert np.isfinite(q_values).all()


# ---- runs


def learned(flow, on, num_updates=10, state=None):
    """The hash of all parameters and targets after some updates, and the saved run."""
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            if report.firing == num_updates:
                arrays = run.node_state("team/learn").state_dict()
                hashed = params_sha256({key: arrays[f"step/{key}"] for key in ("params", "target")})
                return hashed, run.save(replays=True)
    raise AssertionError


@pytest.mark.parametrize("env", [Masked, Boxes])
def test_it_is_the_same_under_every_deployment_and_after_a_resume(env):
    flow = MADDPG(**SMALL, shards=2, prioritized=True).flow(MultiAgentTask(env, policies={"team": AGENTS}))
    expected, _ = learned(flow, Inline())
    _, state = learned(flow, Inline(), num_updates=6)
    assert learned(flow, Inline(), state=state)[0] == expected
    if env is Boxes:
        assert learned(flow, Processes(workers=2))[0] == expected


class Aims:
    """Each agent aims at a number, or its negative, that the other sees; the loss of one is half a gain of the other."""

    metadata = {"render_modes": []}  # noqa: RUF012
    possible_agents = AGENTS[:2]

    def __init__(self, is_box):
        self.is_box, self.agents, self._rng = is_box, [], np.random.default_rng(0)

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (1,))

    def action_space(self, agent):
        return spaces.Box(-2.0, 2.0, (1,)) if self.is_box else spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._sign = self._rng.choice([-1.0, 1.0], 2).astype(np.float32)
        return {agent: self._sign[k, None] for k, agent in enumerate(self.agents)}, {agent: {} for agent in AGENTS[:2]}

    def step(self, actions):
        agents, self.agents = self.agents, []
        did = [float(actions[agent].item()) if self.is_box else 2.0 * actions[agent] - 1.0 for agent in agents]
        lost = [(did[0] - self._sign[0]) ** 2, (did[1] + self._sign[1]) ** 2]
        rewards = {agents[k]: float(0.5 * lost[1 - k] - lost[k]) for k in range(2)}
        over, no = dict.fromkeys(agents, True), dict.fromkeys(agents, False)
        return {agent: np.zeros(1, np.float32) for agent in agents}, rewards, over, no, {agent: {} for agent in agents}

    def close(self):
        pass


@pytest.mark.parametrize("is_box", [True, False])
def test_each_agent_learns_from_its_own_reward(is_box):
    """Opposite actions in the same situation, in a game in which the sum of all rewards says less."""
    task = MultiAgentTask(Aims, policies={"team": AGENTS[:2]}, env_kwargs={"is_box": is_box})
    hp = MADDPG(
        num_envs=16, num_steps=8, learning_starts=256, batch_size=64, samples_per_insert=16.0, learning_rate=5e-3,
        hidden_sizes=(32,), tau=0.05,
    )  # fmt: skip
    with Inline().open(hp.flow(task), seed=1) as run:
        for report in run:
            if report.firing == 60:
                learner = run.node_state("team/learn")
                break
    actor = Actor(learner.recipe.policy)
    actor.load(learner.weights())
    obs = np.array([[sign, 1.0 - k, k] for k in range(2) for sign in (-1.0, 1.0)], np.float32)
    did = learner.recipe.policy.head.mode(actor.network.forward(obs)[0])
    if is_box:
        np.testing.assert_allclose(did[:, 0], [-1.0, 1.0, 1.0, -1.0], atol=0.3)
    else:
        assert did.tolist() == [0, 1, 1, 0]


# ---- mistakes


class Bits(Shifts):
    def action_space(self, agent: str):
        return spaces.MultiBinary(3)


def test_tasks_that_it_cannot_learn_are_refused():
    hp = MADDPG(**SMALL)
    with pytest.raises(
        TaskError, match=r"agents of Relay act in turns; expected an environment whose agents act at once"
    ):
        hp.flow(MultiAgentTask(Relay, policies={"team": AGENTS[:3]}))
    with pytest.raises(SpaceError, match=r"MADDPG needs Box or Discrete actions, but 'Bits' has MultiBinary\(3\)"):
        hp.flow(MultiAgentTask(Bits, policies={"team": AGENTS}))
    with pytest.raises(TaskError, match=r"one policy cannot act for agents with different spaces"):
        hp.flow(Task("pettingzoo:mpe2.simple_speaker_listener_v4"))
    with pytest.raises(TaskError, match=r"MADDPG trains a team of agents; expected a MultiAgentTask"):
        hp.part(Task("CartPole-v1"))
    with pytest.raises(TaskError, match=r"have no agent ids; expected MultiAgentTask\(\.\.\., agent_id=True\), or"):
        hp.part(SHIFTS["team"])
    assert replace(hp, agent_id=False).part(SHIFTS["team"]).stage.num_agents == 4


@pytest.mark.parametrize(("field", "value"), [("n_step", 3), ("normalize_obs", True), ("normalize_reward", True)])
def test_settings_that_joint_transitions_do_not_have_are_refused(field, value):
    with pytest.raises(ConfigError, match=rf"MADDPG\({field}={value}\): expected"):
        MADDPG(**{field: value})
