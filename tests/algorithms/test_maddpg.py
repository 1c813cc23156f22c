"""MADDPG: losses by hand, critics of all agents, relaxed discrete actions, and runs that are the same under every deployment."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs.multi import Relay, Shifts
from torch import nn

import levada as lv
from levada.algorithms.checks import ConfigError
from levada.algorithms.maddpg import MADDPG, MADDPGLoss
from levada.algorithms.multi_agent import multi_agent
from levada.flow import Shard
from levada.rl.acting.actor import Actor
from levada.rl.compute.functional import Net
from levada.rl.data.spaces import SpaceError, map_nest
from levada.rl.envs.agents.agents_task import AgentsTask
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
EACH = {agent: (agent,) for agent in AGENTS}
SMALL = {
    "num_envs": 2, "num_steps": 8, "buffer_size": 512, "learning_starts": 64, "samples_per_insert": 2.0, "batch_size": 16,
    "hidden_sizes": (16,), "compile": False,
}  # fmt: skip


# ---- losses by hand


class Scaled(nn.Module):
    """Actors whose action is what an agent sees, times the agent's weight."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(weights))

    def forward(self, obs):
        means = [self.weights[k] * own for k, own in enumerate(obs)]
        return [SimpleNamespace(base=SimpleNamespace(mean=mean), squash=lambda outputs: outputs) for mean in means]


class Products(nn.Module):
    """Critics Q_0 = v a_0 a_1 + o_0 and Q_1 = v (a_0 + 2 a_1) + o_1, where agents that are not there act with 0."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, obs, action, there):
        action = action * there
        of_actions = torch.stack([action[0].prod(dim=1), action[1] @ torch.tensor([1.0, 2.0])])
        return self.weight * of_actions + torch.stack(obs).squeeze(-1)


def net(module: nn.Module) -> Net:
    return Net(module, dict(module.named_parameters()))


BY_HAND = {
    "obs": (torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [5.0]])),
    "action": (torch.tensor([[2.0], [4.0]]), torch.tensor([[3.0], [7.0]])),
    "there": torch.tensor([[True, True], [True, False]]),
    "next_obs": (torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [0.0]])),
    "next_there": torch.tensor([[True, True], [False, False]]),
    "reward": torch.tensor([[0.5, -1.0], [2.0, 9.0]]),
    "discount": torch.tensor([[0.5, 0.5], [0.0, 0.0]]),
}


def test_the_losses_by_hand():
    """With v = 3, w = (0.5, 0.5), and 2 and 0.25 for the targets; agent 1 is not there in the second transition."""
    actor, critic = Scaled(0.5, 0.5), Products(3.0)
    networks = {"policy": net(actor), "critic": net(critic)}
    targets = {"policy": net(Scaled(0.25, 0.25)), "critic": net(Products(2.0))}
    loss = MADDPGLoss(MADDPG(prioritized=True, output_penalty=0.1), (spaces.Box(-9.0, 9.0, (1,)),) * 2)
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
    of_actors, of_critic = torch.autograd.grad(found.loss, [actor.weights, critic.weight])
    # d Q_i / d a_i times o_i, with the other's replayed action: 3 * 3 * 1 and 3 * 2 * 2
    of_penalty = 0.1 * np.array([(2 * 0.5 * 1.0 + 2 * 1.5 * 3.0) / 2, 2 * 1.0 * 2.0 / 2])
    assert of_actors.tolist() == pytest.approx(-np.array([9.0, 12.0]) / 2 + of_penalty)
    # of the critics' loss alone: error times d Q / d v
    assert of_critic.item() == pytest.approx((errors[0] * [6.0, 0.0]).mean() + errors[1, 0] * 8.0 / 2)


def test_an_agent_that_was_truncated_has_a_next_value_and_for_the_others_it_has_left():
    """Agent 0 in the first transition; agent 1 goes on."""
    batch = {
        name: tuple(own[:1] for own in each) if isinstance(each, tuple) else each[:1] for name, each in BY_HAND.items()
    }
    networks = {"policy": net(Scaled(0.5, 0.5)), "critic": net(Products(3.0))}
    targets = {"policy": net(Scaled(0.25, 0.25)), "critic": net(Products(2.0))}
    loss = MADDPGLoss(MADDPG(), (spaces.Box(-9.0, 9.0, (1,)),) * 2)
    found = loss(Networks(networks, targets), batch | {"next_there": torch.tensor([[False, True]])}, {})
    # next actions (0.25, 0.75): Q'_0 = 2 * 0.25 * 0.75 + 1, Q'_1 = 2 * (0 + 1.5) + 3
    errors = np.array([19.0 - (0.5 + 0.5 * 1.375), 26.0 - (-1.0 + 0.5 * 6.0)])
    assert found.stats["critic_loss"].item() == pytest.approx((errors**2 / 2).sum())


def test_discrete_actions_are_samples_of_the_policy_with_the_gradient_of_the_softmax():
    """Beside those of another agent, which are not sampled."""
    both = (spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3))
    policies = [policy_of(space, tanh_squash=isinstance(space, spaces.Box)) for space in both]
    mean, logits = torch.tensor([0.5, -0.5]), torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    num = 80_000
    rows = (torch.cat([mean, torch.zeros(2)]), logits)
    distributions = [
        policy.head.distribution(row.expand(num, len(row))) for policy, row in zip(policies, rows, strict=True)
    ]
    noise = torch.randn(num, 3, generator=torch.Generator().manual_seed(0))
    found = MADDPGLoss(MADDPG(), both).acted(distributions, noise)
    assert found.action.shape == (num, 5)
    torch.testing.assert_close(found.action[:, :2], mean.tanh().expand(num, 2))
    sampled = found.action[:, 2:]
    assert ((sampled.detach() - 1.0).abs() < 1e-6).sum() == num  # one-hot
    torch.testing.assert_close(sampled.detach().mean(dim=0), logits.softmax(0).detach(), atol=5e-3, rtol=0.0)
    assert found.squares[0].tolist() == pytest.approx([0.25, logits.log_softmax(0).square().mean().item()])
    [slope] = torch.autograd.grad(sampled[:, 0].mean(), logits)
    uniform = torch.special.ndtr(noise.double())
    soft = (logits.detach() - (-uniform.log()).log()).softmax(dim=-1)
    expected = (soft[:, :1] * (torch.eye(3)[0] - soft)).mean(dim=0)
    torch.testing.assert_close(slope, expected.float(), atol=1e-4, rtol=1e-3)


# ---- critics


def policy_of(action_space: spaces.Space, size: int = 3, **fields) -> Policy:
    return Policy(observation_space=spaces.Box(-1.0, 1.0, (size,)), action_space=action_space, **fields)


def test_each_agent_has_a_critic_that_sees_all_who_are_there():
    """Agents with different spaces."""
    policies = [
        policy_of(spaces.Discrete(4)), policy_of(spaces.Box(-1.0, 1.0, (2, 3)), size=5), policy_of(spaces.Discrete(2)),
    ]  # fmt: skip
    critic, columns = JointCritic(policies, hidden_sizes=(8,)), (slice(4), slice(4, 10), slice(10, 12))
    there = torch.tensor([[True, True, False]] * 5)
    obs, action = [torch.rand(5, 3), torch.rand(5, 5), torch.rand(5, 3)], torch.rand(3, 5, 12)
    values = critic(obs, action, there)
    assert values.shape == (3, 5)
    for agent in range(3):
        seen, done = [own.clone() for own in obs], action.clone()
        seen[agent][...], done[..., columns[agent]] = 9.0, 9.0
        for one, other in ((seen, action), (obs, done)):
            assert torch.equal(critic(one, other, there), values) == (agent == 2)
        own = action.clone()
        own[agent] += 1.0  # the joint actions that only one critic is given
        assert (critic(obs, own, there) != values).any(dim=1).tolist() == [k == agent for k in range(3)]
    assert torch.equal(critic(obs, action, there.expand(3, 5, 3)), values)
    of_all = critic(obs, action, torch.ones_like(there))
    seen_by = torch.tensor([[True, True, k == 2] for k in range(3)])[:, None].expand(3, 5, 3)
    assert torch.equal(critic(obs, action, seen_by), torch.stack([*values[:2], of_all[2]]))


def test_critics_of_other_actions_are_refused():
    with pytest.raises(SpaceError, match=r"JointCritic: needs a Box or Discrete action space, got MultiBinary\(2\)"):
        JointCritic([policy_of(spaces.MultiBinary(2))])


class Masked(Shifts):
    """`Shifts` in which agent k must not take action k % 3."""

    def observation_space(self, agent: str):
        return spaces.Dict({"obs": super().observation_space(agent), "action_mask": spaces.MultiBinary(3)})

    def _obs(self, k: int):
        return {"obs": super()._obs(k), "action_mask": (np.arange(3) != k % 3).astype(np.int8)}

    def step(self, actions):
        assert all(action != int(agent[-1]) % 3 for agent, action in actions.items())
        return super().step(actions)


class Mixed(Shifts):
    """`Shifts` in which each agent has another action space."""

    def action_space(self, agent: str):
        k = AGENTS.index(agent)
        return spaces.Discrete(2 + k) if k % 2 else spaces.Box(-1.0, 2.0, (1 + k,))

    def observation_space(self, agent: str):
        return spaces.Box(-1.0, np.inf, (3 + AGENTS.index(agent),))

    def _obs(self, k: int):
        return np.concatenate([super()._obs(k), np.full(k, k, np.float32)])


def test_updates_can_be_compiled(monkeypatch):
    """As in long runs. Here they are traced as for that, and no machine code is made, which takes long."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr("levada.rl.learning.learner.has_compiler", lambda: True)
    task = MultiAgentTask(Mixed, policies=EACH)
    live, stats = None, []
    for compiled in (False, True):
        part = MADDPG(**{**SMALL, "compile": compiled}).part(task)
        if live is None:
            live = part.sampler(Shard("step", 0, 1, 7))
            batch = part.stage(live(part.learner.open(3).weights()))
            live.close()
        stats.append(part.learner.open(3).update([batch]).stats)
    assert stats[1] == pytest.approx(stats[0], rel=1e-4)


def test_an_agent_that_has_left_does_not_change_what_is_learned():
    """Whatever is in its rows."""
    rng = np.random.default_rng(0)
    there, next_there = (rng.random((16, 4)) < 0.6 for _ in range(2))
    batch = {
        "obs": tuple(rng.normal(size=(16, 3 + k)).astype(np.float32) for k in range(4)), "there": there,
        "next_obs": tuple(rng.normal(size=(16, 3 + k)).astype(np.float32) for k in range(4)), "next_there": next_there,
        "reward": rng.normal(size=(16, 4)).astype(np.float32) * there,
        "discount": np.float32(0.9) * next_there.astype(np.float32),
        "action": tuple(rng.integers(0, 2, 16) if k % 2 else rng.random((16, 1 + k), np.float32) for k in range(4)),
    }  # fmt: skip
    other = {name: map_nest(np.copy, column) for name, column in batch.items()}
    other["reward"][~there] = 100.0
    for k in range(4):
        other["obs"][k][~there[:, k]] = 100.0
        other["next_obs"][k][~next_there[:, k]] = 100.0
        other["action"][k][~there[:, k]] = 1
    found = []
    for columns in (batch, other, batch | {"there": np.ones_like(there)}):
        learner = MADDPG(**SMALL).part(MultiAgentTask(Mixed, policies=EACH)).learner.open(3)
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
                arrays = run.node_state("learn").state_dict()
                hashed = params_sha256({key: arrays[f"step/{key}"] for key in ("params", "target")})
                return hashed, run.save(replays=True)
    raise AssertionError


@pytest.mark.parametrize("env", [Masked, Mixed])
def test_it_is_the_same_under_every_deployment_and_after_a_resume(env):
    flow = MADDPG(**SMALL, shards=2, prioritized=True).flow(MultiAgentTask(env, policies=EACH))
    expected, _ = learned(flow, Inline())
    _, state = learned(flow, Inline(), num_updates=6)
    assert learned(flow, Inline(), state=state)[0] == expected
    if env is Mixed:
        assert learned(flow, Processes(workers=2))[0] == expected


def test_two_processes_compute_each_update_together():
    flow = MADDPG(**SMALL, microbatch_size=8, prioritized=True).flow(MultiAgentTask(Mixed, policies=EACH))
    found, _ = learned(flow, Processes(workers=1, learners=2, reduce="exact"), num_updates=4)
    assert found == learned(flow, Inline(), num_updates=4)[0]


class Aims:
    """Each agent aims at a number, or its negative, that the other sees; the loss of one is half a gain of the other.

    The first has a Box action and sees one number; the second has two discrete actions, and sees a number that says nothing, too.
    """

    metadata = {"render_modes": []}  # noqa: RUF012
    possible_agents = AGENTS[:2]

    def __init__(self):
        self.agents, self._rng = [], np.random.default_rng(0)

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (1 + self.possible_agents.index(agent),))

    def action_space(self, agent):
        return spaces.Discrete(2) if self.possible_agents.index(agent) else spaces.Box(-2.0, 2.0, (1,))

    def _seen(self):
        return {AGENTS[0]: self._sign[:1], AGENTS[1]: np.array([0.5, self._sign[1]], np.float32)}

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._sign = self._rng.choice([-1.0, 1.0], 2).astype(np.float32)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        agents, self.agents = self.agents, []
        did = float(actions[agents[0]].item()), 2.0 * actions[agents[1]] - 1.0
        lost = [(did[0] - self._sign[0]) ** 2, (did[1] + self._sign[1]) ** 2]
        rewards = {agents[k]: float(0.5 * lost[1 - k] - lost[k]) for k in range(2)}
        over, no = dict.fromkeys(agents, True), dict.fromkeys(agents, False)
        return self._seen(), rewards, over, no, {agent: {} for agent in agents}

    def close(self):
        pass


def test_each_agent_learns_from_its_own_reward():
    """With spaces of its own, in a game in which the sum of all rewards says less."""
    hp = MADDPG(
        num_envs=16, num_steps=8, learning_starts=256, batch_size=64, samples_per_insert=16.0, learning_rate=5e-3,
        hidden_sizes=(32,), tau=0.05,
    )  # fmt: skip
    with Inline().open(hp.flow(AgentsTask.of(Task(Aims))), seed=1) as run:
        for report in run:
            if report.firing == 60:
                learner = run.node_state("learn")
                break
    did = []
    for number, (policy, weights) in enumerate(learner.recipe.policy.by_name(learner.weights()).values()):
        actor = Actor(policy)
        actor.load(weights)
        signs = np.array([[-1.0], [1.0]], np.float32)
        did.append(
            actor.mode(signs if number == 0 else np.concatenate([np.full((2, 1), np.float32(0.5)), signs], axis=1))
        )
    np.testing.assert_allclose(did[0][:, 0], [-1.0, 1.0], atol=0.3)
    assert did[1].tolist() == [1, 0]


def test_a_run_has_a_policy_for_each_agent(tmp_path):
    run = lv.train(
        MADDPG(**SMALL), "pettingzoo:mpe2.simple_speaker_listener_v4", until="updates=3", seed=1, out=tmp_path / "run",
        display="quiet",
    )  # fmt: skip
    assert {name: each.updates for name, each in run.summary.policies.items()} == {"speaker_0": 3, "listener_0": 3}
    again = lv.load(run.path)
    for name, size in (("speaker_0", 3), ("listener_0", 11)):
        policy = again.policies[name]
        assert (policy.policy.observation_space.shape, policy.version) == ((size,), 3)
        assert params_sha256(policy.weights) == params_sha256(run.policies[name].weights)
    found = lv.evaluate_policies(again, num_episodes=2)
    assert [len(each.episodes) for each in found.values()] == [2, 2]


# ---- mistakes


class Bits(Shifts):
    def action_space(self, agent: str):
        return spaces.MultiBinary(3)


def test_tasks_that_it_cannot_learn_are_refused():
    hp = MADDPG(**SMALL)
    with pytest.raises(
        TaskError, match=r"agents of Relay act in turns; expected an environment whose agents act at once"
    ):
        hp.flow(AgentsTask.of(Task(Relay)))
    with pytest.raises(SpaceError, match=r"MADDPG needs Box or Discrete actions, but 'Bits' has MultiBinary\(3\)"):
        hp.flow(MultiAgentTask(Bits, policies=EACH))
    team = MultiAgentTask(Shifts, policies={"team": AGENTS})
    with pytest.raises(TaskError, match=r"policy 'team' acts for agent_0, .*; expected a policy for each agent"):
        hp.flow(team)
    with pytest.raises(TaskError, match=r"each of which has an actor; expected `levada train maddpg`, or MADDPG\("):
        multi_agent(team, {"team": hp})


@pytest.mark.parametrize(("field", "value"), [("n_step", 3), ("normalize_obs", True), ("normalize_reward", True)])
def test_settings_that_joint_transitions_do_not_have_are_refused(field, value):
    with pytest.raises(ConfigError, match=rf"MADDPG\({field}={value}\): expected"):
        MADDPG(**{field: value})
