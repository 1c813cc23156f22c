"""MAPPO: values see the state and actions do not, at each step and at the end of episodes; and IPPO, its flow without a state."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.envs.multi import CartPoles, Comers, Relay

from levada.algorithms.checks import ConfigError
from levada.algorithms.ippo import IPPO
from levada.algorithms.mappo import MAPPO
from levada.algorithms.multi_agent import multi_agent
from levada.algorithms.ppo import PPO
from levada.flow import Shard
from levada.flow.items import serve_here
from levada.math.returns_numpy import gae_numpy
from levada.rl.acting.actor import Actor
from levada.rl.acting.multi_agent import MultiAgentSampler
from levada.rl.compute.functional import Net
from levada.rl.data.normalize import moments
from levada.rl.data.spaces import SpaceError, map_nest
from levada.rl.envs.agents.task import MultiAgentTask
from levada.rl.envs.task import Task, TaskError
from levada.rl.learning.loss import Networks
from levada.rl.policies.networks import CentralizedNet
from levada.rl.policies.policy import Policy
from levada.rl.replay.transitions import Transitions
from levada.run.monitor import Monitor
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

NUM_STEPS, NUM_ENVS, NUM_ITEMS = 7, 2, 5
POLICIES = {"a": ("agent_0", "agent_3"), "b": ("agent_1",), "c": ("agent_2",)}
COMERS = MultiAgentTask(Comers, POLICIES, with_state=True)
RELAY = MultiAgentTask(Relay, {"a": ("agent_0", "agent_2"), "b": ("agent_1",)}, with_state=True)
BOTH = spaces.Dict({"obs": spaces.Box(-1.0, 1.0, (3,)), "state": spaces.Box(-1.0, 1.0, (9,))})
SMALL = {"num_steps": NUM_STEPS, "hidden_sizes": (8,), "compile": False, "normalize_value": True}


def shown(task, own, *, is_final):
    """The state that belongs to an own observation: both environments say everything in it."""
    number, now = int(own[0]), int(own[1])
    if task is COMERS:
        state = np.zeros(13, np.float32)
        for k, (first, end) in enumerate(Comers.SPANS):
            start = (0, 3, 6, 10)[k]
            if first <= now <= end:
                state[start : start + 3 + (k == 2)] = [k, now, now - first] + [-1] * (k == 2)
        return state
    turns = [k for turn in range(4) for k in range(3) if turn < Relay.TURNS[k]]
    state = np.zeros(9, np.float32)
    for k in range(3):
        is_there = turns[:now].count(k) < Relay.TURNS[k] or (is_final and k == number)
        if is_there:
            state[3 * k : 3 * k + 3] = [k, now, own[2]]
    return state


def opened(task, **more):
    """The parts of each policy, a running sampler, and weights."""
    parts = {}
    for name, agents in task.policies.items():
        hp = MAPPO(num_envs=NUM_ENVS * len(agents), **SMALL, **more)
        part = hp.part(task[name], name)
        parts[name] = part, hp.prepare_for(part)
    recipe = MultiAgentSampler(task=task, samplers={name: part.sampler for name, (part, _) in parts.items()})
    weights = {name: part.learner.open(seed).weights() for seed, (name, (part, _)) in enumerate(parts.items())}
    return parts, recipe(Shard("rollout", 0, 1, 7)), weights


@pytest.mark.parametrize(("env", "num_rows"), [(CartPoles, 200), (Relay, 50)], ids=["at once", "in turns"])
def test_annealing_counts_env_steps(env, num_rows):
    """Each step has a row of each of four agents, if they act at once."""
    flow = IPPO(anneal_steps=100, learning_rate=1.0).flow(Task(env))
    assert flow.learners()["policy/learn"].coefficients(num_rows)["learning_rate"] == pytest.approx(0.5)


@pytest.mark.parametrize("task", [COMERS, RELAY], ids=["at once", "in turns"])
def test_gae_uses_the_values_of_the_state_at_each_step_and_at_the_end(task):
    """Every row has the state of its moment; its value, and that of the true next observation, are those of both."""
    parts, live, weights = opened(task)
    num_rows = num_ends = 0
    for _ in range(NUM_ITEMS):
        item = live(weights)
        for name, (part, gae) in parts.items():
            rollout = item[name]
            actor = Actor(part.learner.policy, serve_here, 1)
            actor.load(weights[name])
            own, state = rollout.obs["obs"], rollout.obs["state"]
            assert state.shape[:2] == (NUM_STEPS + 1, NUM_ENVS * len(task.policies[name]))
            assert state.dtype == np.float32
            for t, b in np.argwhere(rollout.mask):
                np.testing.assert_array_equal(state[t, b], shown(task, own[t, b], is_final=False))
                num_rows += 1
                if task is COMERS and rollout.truncated[t, b]:  # the last observation is known: that of step 5
                    number = int(own[t, b, 0])
                    last = np.array([number, 5, 5 - Comers.SPANS[number][0]], np.float32)
                    both = {"obs": last[None], "state": shown(task, last, is_final=True)[None]}
                    assert rollout.next_value[t, b] == pytest.approx(actor.value(both)[0], abs=1e-5)
                    num_ends += 1
            flat = {key: leaf[:-1].reshape(-1, leaf.shape[-1]) for key, leaf in rollout.obs.items()}
            value = actor.value(flat).reshape(rollout.mask.shape)
            np.testing.assert_allclose(rollout.value[rollout.mask], value[rollout.mask], atol=1e-5)
            advantage, target = gae_numpy(
                rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.truncated,
                discount=0.99, lambda_=0.95,
            )  # fmt: skip
            columns = gae(rollout).columns
            np.testing.assert_array_equal(columns["advantage"], advantage.ravel())
            np.testing.assert_array_equal(columns["target"], target.ravel())
            np.testing.assert_array_equal(columns["obs"]["state"], state[:-1].reshape(-1, state.shape[-1]))
    live.close()
    assert num_rows > 60
    assert num_ends > 5 or task is RELAY


def test_final_states_in_turns():
    """The truncated agent of the last turn bootstraps from the state at the end, in which it alone is left."""
    parts, live, weights = opened(RELAY)
    actor = Actor(parts["a"][0].learner.policy, serve_here, 1)
    actor.load(weights["a"])
    found = 0
    for _ in range(8):
        rollout = live(weights)["a"]
        for t, b in np.argwhere(rollout.truncated & rollout.mask):
            if rollout.obs["obs"][t, b].tolist()[:2] != [2, 7]:  # other rows are cut where the item ends
                continue
            last = np.array([2, 8, rollout.action[t, b]], np.float32)
            both = {"obs": last[None], "state": shown(RELAY, last, is_final=True)[None]}
            assert rollout.next_value[t, b] == pytest.approx(actor.value(both)[0], abs=1e-5)
            found += 1
    live.close()
    assert found > 3


def test_actions_do_not_depend_on_the_state_and_values_do():
    policy = Policy(observation_space=BOTH, action_space=spaces.Discrete(4), network=CentralizedNet)
    module = policy.module(seed=0)
    rng = np.random.default_rng(0)
    own = torch.tensor(rng.standard_normal((5, 3), np.float32))
    one, other = (torch.tensor(rng.standard_normal((5, 9), np.float32)) for _ in range(2))
    (first, value), (second, other_value) = (module({"obs": own, "state": state}) for state in (one, other))
    action = torch.arange(4)[:, None].expand(4, 5)
    assert torch.equal(*(torch.stack([each.log_prob(row) for row in action]) for each in (first, second)))
    assert (value - other_value).abs().min() > 1e-3
    _, of_another = module({"obs": own.flip(0), "state": one})
    assert (value - of_another).abs().max() > 1e-3  # whose value it is
    actor = Actor(policy)
    actor.load(policy.weights(module))
    noise = actor.head.draw(rng, 1, 5)[0]
    acted = [actor.sample({"obs": own.numpy(), "state": state.numpy()}, noise) for state in (one, other)]
    np.testing.assert_array_equal(*acted)


def test_values_are_normalized_by_the_moments_of_their_targets():
    """After an update, the buffers are the moments of all targets so far, by which outputs are denormalized."""
    parts, live, weights = opened(COMERS)
    part, gae = parts["a"]
    learner = part.learner.open(0)
    targets = np.zeros(0)
    for _ in range(2):
        before = learner.weights()
        batch = gae(live(weights)["a"])
        is_step, target = batch.columns["mask"], batch.columns["target"]
        targets = np.concatenate([targets, target[is_step]])
        stats = learner.update([batch]).stats
        after = learner.weights()
        assert after["values.mean"] == pytest.approx(targets.mean(), rel=1e-5)
        assert after["values.var"] == pytest.approx(targets.var(), rel=1e-4)
    assert before["values.var"] > 100.0 and stats["losses/value_loss"] < 5.0
    obs = {key: torch.tensor(leaf[is_step]) for key, leaf in batch.columns["obs"].items()}
    policy = part.learner.policy
    actor, module = Actor(policy), policy.module(seed=0)
    actor.load(after)
    module.load_state_dict({name: torch.tensor(array) for name, array in after.items()})
    raw = module.network(obs)[1].detach().numpy()
    expected = raw * np.sqrt(targets.var()) + targets.mean()
    np.testing.assert_allclose(actor.value({key: leaf.numpy() for key, leaf in obs.items()}), expected, rtol=1e-4)
    np.testing.assert_allclose(module(obs)[1].detach().numpy(), expected, rtol=1e-4)
    live.close()


def test_the_loss_of_normalized_values_by_hand():
    """(value - target) / std: the value loss, and the clipping range around the old values."""
    hp = MAPPO(num_envs=2, num_steps=2, clip_range_vf=0.2)
    policy = Policy(
        observation_space=BOTH, action_space=spaces.Discrete(2), network=CentralizedNet, normalize_value=True
    )
    module = policy.module(seed=0)
    module.values.mean.fill_(-30.0)
    module.values.var.fill_(16.0)
    obs = {"obs": torch.rand(4, 3), "state": torch.rand(4, 9)}
    with torch.no_grad():
        distribution, value = module(obs)
    action = torch.tensor([0, 1, 1, 0])
    batch = {
        "obs": obs, "action": action, "log_prob": distribution.log_prob(action), "advantage": torch.arange(4.0),
        "weight": torch.full((4,), 0.25), "value": value + torch.tensor([0.4, 0.4, 2.0, 2.0]),
        "target": value + torch.tensor([8.0, -8.0, 8.0, -8.0]),
    }  # fmt: skip
    net = Net(module, {**dict(module.named_parameters()), **dict(module.named_buffers())})
    found = hp.make_loss()(Networks({"policy": net}), batch, {"clip_range": torch.tensor(0.2)})
    # in units of 4: errors of 2; those of the last two, clipped 0.3 above the value, are 1.7 and 2.3
    assert found.stats["value_loss"].item() == pytest.approx(0.5 * (4.0 + 4.0 + 4.0 + 2.3**2) / 4, rel=1e-4)


def test_a_network_that_describes_its_layers_is_denormalized_too():
    space = spaces.Box(-1.0, 1.0, (3,))
    policy = Policy(observation_space=space, action_space=spaces.Discrete(2), normalize_value=True)
    module, actor = policy.module(seed=0), Actor(policy)
    module.values.mean.fill_(5.0)
    module.values.var.fill_(9.0)
    actor.load(policy.weights(module))
    obs = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    raw = module.network(torch.tensor(obs))[1].detach().numpy()
    np.testing.assert_allclose(actor.value(obs), 3.0 * raw + 5.0, rtol=1e-5)


@pytest.mark.parametrize("normalizes", [False, True])
def test_values_of_states_have_one_row_for_each(normalizes):
    """In the rollout, and in the loss, whose gradient is that of a row for each agent. Agents that are not there have no part."""
    task = MultiAgentTask(Comers, {"a": ("agent_3", "agent_1", "agent_0"), "b": ("agent_2",)}, with_state=True)
    parts, live, weights = opened(task, value_per="state", normalize_obs=normalizes)
    part, steps = parts["a"]
    rollout = [live(weights)["a"] for _ in range(2)][-1]
    rows, found = steps.prepare(rollout).columns, steps(rollout).columns
    mask = found["mask"]
    assert {"".join("-x"[is_there] for is_there in each) for each in mask.astype(int)} == {"--x", "-xx", "x-x"}
    for k in range(3):  # agents
        np.testing.assert_array_equal(found["advantage"][:, k], rows["advantage"][k::3])
        np.testing.assert_array_equal(found["obs"]["state"][mask[:, k]], rows["obs"]["state"][k::3][mask[:, k]])
    actor = Actor(part.learner.policy, serve_here, 1)
    actor.load(weights["a"])
    state = rollout.obs["state"][:-1].reshape(-1, 13)
    alone = [actor.value({"obs": rollout.obs["obs"][0, :1], "state": each[None]})[0] for each in state]
    is_step = rollout.mask.ravel()
    np.testing.assert_allclose(rollout.value.ravel()[is_step], np.array(alone)[is_step], atol=1e-5)

    module = part.learner.policy.module(seed=0)
    gradients = []
    for columns in (rows, found):
        batch = map_nest(lambda leaf: torch.tensor(np.asarray(leaf)), columns)
        batch["weight"] = batch["mask"].float() / batch["mask"].sum()
        net = Net(module, {**dict(module.named_parameters()), **dict(module.named_buffers())})
        loss = MAPPO(num_envs=2, num_steps=2).make_loss()
        output = loss(Networks({"policy": net}), batch, {"clip_range": torch.tensor(0.2)})
        gradients.append(torch.autograd.grad(output.loss, list(module.parameters())))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    live.close()


def test_a_minibatch_has_whole_steps():
    hp = MAPPO(num_envs=4, num_steps=6, num_minibatches=3, num_epochs=1, value_per="state", hidden_sizes=(8,))
    part = hp.part(COMERS["a"], "a")
    live = part.learner.open(0)
    assert part.learner.num_agents == 2
    rng = np.random.default_rng(0)
    columns = {
        "obs": {"obs": rng.standard_normal((12, 2, 3), np.float32), "state": rng.standard_normal((12, 13), np.float32)},
        "action": np.zeros((12, 2), np.int64), "log_prob": np.zeros((12, 2), np.float32),
        "value": np.zeros((12, 2), np.float32), "advantage": np.ones((12, 2), np.float32),
        "target": np.ones((12, 2), np.float32), "mask": np.ones((12, 2), np.bool_),
    }  # fmt: skip
    live.update([Transitions(columns, {"value": moments(np.ones((12, 2)), np.ones((12, 2), np.bool_))})])
    assert (live.num_minibatches, live.num_transitions) == (3, 24)


def test_values_of_equal_states_are_computed_once():
    policy = Policy(
        observation_space=BOTH, action_space=spaces.Discrete(4), network=partial(CentralizedNet, value_per="state")
    )
    module, actor = policy.module(seed=0), Actor(policy)
    actor.load(policy.weights(module))
    state = np.random.default_rng(0).standard_normal((4, 9), np.float32)[[0, 0, 1, 2, 2, 2, 1, 3]]
    obs = {"obs": np.zeros((8, 3), np.float32), "state": state}
    expected = module(map_nest(torch.tensor, obs))[1].detach().numpy()
    np.testing.assert_allclose(actor.value(obs), expected, rtol=1e-5)
    twice = module({"obs": torch.zeros(8, 3), "state": torch.tensor(state[[0, 2, 3, 7]])})[1].detach().numpy()
    np.testing.assert_allclose(twice, np.repeat(expected[[0, 2, 3, 7]], 2), rtol=1e-5)


def test_policy_and_value_share_no_parameter():
    network = CentralizedNet(BOTH, 4)
    obs = {"obs": torch.ones(2, 3), "state": torch.ones(2, 9)}
    params, value = network(obs)
    of_policy, of_value = (
        {name for (name, _), grad in zip(network.named_parameters(), torch.autograd.grad(
            output.sum(), list(network.parameters()), allow_unused=True), strict=True) if grad is not None}
        for output in (params, value)
    )  # fmt: skip
    assert {name.partition(".")[0] for name in of_policy} == {"policy"}
    assert {name.partition(".")[0] for name in of_value} == {"value"}


def test_images_discrete_values_and_extractors_of_own_observations():
    space = spaces.Dict(
        {"obs": spaces.Box(0, 255, (12, 12, 3), np.uint8), "state": spaces.Dict({"n": spaces.Discrete(5)})}
    )
    obs = {"obs": torch.zeros(2, 12, 12, 3, dtype=torch.uint8), "state": {"n": torch.tensor([1, 4])}}
    params, value = CentralizedNet(space, 6, hidden_sizes=())(obs)
    assert params.shape == (2, 6)
    assert value[0] != value[1]
    network = CentralizedNet(BOTH, 6, features_extractor=lambda own: torch.nn.Linear(own.shape[0], 7))
    assert network.policy[0].in_features == 7
    assert network.value[0].in_features == 7 + 9


def test_masks_are_applied():
    space = spaces.Dict({"obs": BOTH, "action_mask": spaces.MultiBinary(4)})
    policy = Policy(observation_space=space, action_space=spaces.Discrete(4), network=CentralizedNet)
    actor = Actor(policy)
    actor.load(policy.weights(policy.module(seed=0)))
    mask = np.eye(4, dtype=np.int8)
    obs = {"obs": {"obs": np.zeros((4, 3), np.float32), "state": np.zeros((4, 9), np.float32)}, "action_mask": mask}
    assert actor.sample(obs, actor.head.draw(np.random.default_rng(0), 1, 4)[0]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("more", [{"hidden_sizes": (16, 8), "activation": "relu"}, {"normalize_obs": True}])
def test_settings_reach_the_network(more):
    policy = MAPPO(num_envs=2, num_steps=4, **more).policy(COMERS["a"])
    module = policy.module(seed=0)
    assert isinstance(module.network, CentralizedNet)
    if "hidden_sizes" in more:
        sizes = [layer.out_features for layer in module.network.value if isinstance(layer, torch.nn.Linear)]
        assert sizes == [16, 8, 1]
        assert isinstance(module.network.policy[1], torch.nn.ReLU)
    assert len(module.normalizers) == 2 * ("normalize_obs" in more)


def test_mistakes_are_told_before_anything_starts():
    with pytest.raises(
        ConfigError, match=r"task 'Comers' shows Box.*did you forget MultiAgentTask\(\.\.\., with_state=True\)"
    ):
        MAPPO().part(dataclasses.replace(COMERS, with_state=False)["a"])
    with pytest.raises(
        TaskError, match=r"task 'CartPole-v1': it has a single agent; expected an environment of several agents"
    ):
        MAPPO().flow(Task("CartPole-v1"))
    with pytest.raises(
        TaskError, match=r"'Comers' is a MultiAgentTask, which says who acts for whom; expected a levada\.Task"
    ):
        IPPO().flow(COMERS)
    with pytest.raises(ConfigError, match=r"agents of Relay act in turns.*value_per='agent'"):
        MAPPO(num_envs=4, value_per="state").part(RELAY["a"])
    with pytest.raises(ConfigError, match=r"minibatches of 3 transitions; expected a multiple of 2"):
        MAPPO(num_envs=2, num_steps=6, num_minibatches=4, value_per="state").part(COMERS["a"])
    with pytest.raises(ConfigError, match=r"microbatches of 3 transitions; expected a multiple of 2"):
        MAPPO(num_envs=2, num_steps=6, microbatch_size=3, value_per="state").part(COMERS["a"])
    with pytest.raises(ConfigError, match=r"value_per='state', network=\.\.\.\): expected at most one"):
        MAPPO(network="torch.nn:Linear", value_per="state")
    with pytest.raises(ConfigError, match=r"rnn_type='lstm'\): expected None"):
        MAPPO(rnn_type="lstm")
    with pytest.raises(SpaceError, match=r"CentralizedNet: observations are Box.*with_state=True"):
        CentralizedNet(spaces.Box(-1, 1, (3,)), 2)


@pytest.mark.parametrize("algorithm", [IPPO, MAPPO])
def test_minibatches_and_microbatches_count_a_transition_of_each_agent(algorithm: type[IPPO]) -> None:
    """Five steps of two environments with three agents are 30 transitions, more than there are env steps."""
    task = Task("pettingzoo:mpe2.simple_spread_v3")
    sizes = {"num_envs": 2, "num_steps": 5, "num_minibatches": None, "minibatch_size": 30}
    (learner,) = algorithm(**sizes, microbatch_size=15).flow(task).learners().values()
    assert (learner.minibatch_size, learner.num_microbatches) == (30, 2)
    with pytest.raises(ConfigError, match=r"microbatch_size=7\) does not divide the minibatch = 30; try 6 or 10"):
        algorithm(**sizes, microbatch_size=7).flow(task)
    with pytest.raises(
        ConfigError,
        match=r"minibatch_size=60\) does not divide shards \* \(num_envs \* number of agents\) \* num_steps",
    ):
        algorithm(**sizes | {"minibatch_size": 60}).flow(task)


class Luck:
    """Two agents each see a bit, to be repeated; both get the mean of their successes, and luck that only the state shows."""

    metadata = {"render_modes": []}  # noqa: RUF012
    possible_agents = ("agent_0", "agent_1")
    state_space = spaces.Box(-5.0, 5.0, (1,))

    def __init__(self):
        self.agents = []

    def observation_space(self, agent):
        return spaces.Discrete(2)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def state(self):
        return np.array([self._luck], np.float32)

    def _deal(self):
        self._bits, self._luck = self._rng.integers(0, 2, 2), float(self._rng.choice([-5.0, 5.0]))
        return dict(zip(self.possible_agents, map(int, self._bits), strict=True))

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        return self._deal(), {agent: {} for agent in self.agents}

    def step(self, actions):
        won = np.mean([actions[agent] == bit for agent, bit in zip(self.possible_agents, self._bits, strict=True)])
        agents, reward = self.agents, float(won) + self._luck
        self.agents = []
        return (
            self._deal(), dict.fromkeys(agents, reward), dict.fromkeys(agents, True), dict.fromkeys(agents, False),
            {agent: {} for agent in agents},
        )  # fmt: skip

    def close(self):
        pass


def trained(task, hp, num_updates, name="policy"):
    """The actor of a policy after some updates, the last report, and the counts."""
    monitor = Monitor()
    with Inline().open(multi_agent(task, {name: hp}), seed=1, instruments=[monitor]) as run:
        for report in run:
            if report.firing == num_updates:
                break
        actor = Actor(run.node_state(f"{name}/learn").recipe.policy)
        actor.load(run.node_state(f"{name}/learn").weights())
    return actor, report, monitor


@pytest.mark.parametrize("value_per", ["agent", "state"])
def test_it_learns_where_only_the_state_explains_rewards(value_per):
    """And PPO's values, which do not see the luck, explain nothing of them."""
    task = MultiAgentTask(Luck, {"policy": Luck.possible_agents}, with_state=True)
    hp = MAPPO(
        num_envs=16, num_steps=16, learning_rate=3e-3, hidden_sizes=(16,), agent_id=False, compile=False, value_per=value_per
    )  # fmt: skip
    actor, report, _ = trained(task, hp, 40)
    assert report.values["losses/explained_variance"] > 0.95
    for luck in (-5.0, 5.0):
        obs = {"obs": np.arange(2), "state": np.full((2, 1), luck, np.float32)}
        assert np.exp(actor.evaluate(obs, np.arange(2))).min() > 0.9
    own = {name: value for name, value in vars(hp).items() if name != "value_per"}
    _, report, _ = trained(dataclasses.replace(task, with_state=False), IPPO(**own), 40)
    assert report.values["losses/explained_variance"] < 0.3


def test_ippo_learns_with_a_shared_policy():
    task = MultiAgentTask(CartPoles, {"policy": tuple(f"agent_{k}" for k in range(4))})
    hp = PPO(
        num_envs=16, num_steps=32, num_epochs=10, learning_rate=1e-3, discount=0.98, gae_lambda=0.8, minibatch_size=128
    )
    _, _, monitor = trained(task, hp, 80)
    assert monitor.return_mean_100 > 90  # a random policy has 22


def test_ippo_is_ppo_of_all_agents_by_what_each_sees():
    """And its networks may be recurrent."""
    task = Task(Luck)
    hp = IPPO(num_envs=4, num_steps=8, rnn_type="gru", rnn_size=8, agent_id=False, compile=False)
    flow = hp.flow(task)
    assert flow.nodes["rollout"].work.samplers["policy"].num_envs == 4 * 2
    assert flow.learners()["policy/learn"].policy.observation_space == spaces.Discrete(2)
    shown = MAPPO(num_envs=4).flow(task).learners()["policy/learn"].policy.observation_space
    assert shown["state"].shape == (1,)
    assert shown["obs"] == spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))  # the bit, and the agent's index
    with Inline().open(flow, seed=1) as run:
        losses = [report.values["losses/value_loss"] for report, _ in zip(run, range(3), strict=False)]
    assert losses[0] > 10.0  # in units of 1, and then in units of the variance of the targets, about 25
    assert max(losses[1:]) < 1.5


def test_ippo_learns_with_a_policy_for_each_agent():
    """Their own networks, made by the same settings."""
    task = MultiAgentTask(Luck, {"a": ("agent_0",), "b": ("agent_1",)})
    hp = PPO(num_envs=4, num_steps=8, minibatch_size=32, compile=False)
    with Inline().open(multi_agent(task, {"a": hp, "b": hp}), seed=1) as run:
        for report in run:
            if report.node == "b/learn" and report.firing == 3:
                break
        weights = [params_sha256(run.node_state(f"{name}/learn").weights()) for name in "ab"]
    assert report.versions == {"a": 3, "b": 3}
    assert weights[0] != weights[1]


def test_processes_make_the_bits_of_inline():
    hp = MAPPO(shards=2, num_envs=8, num_steps=8, hidden_sizes=(8,), compile=False)
    agents = tuple(f"agent_{k}" for k in range(4))
    flow = multi_agent(MultiAgentTask(CartPoles, {"all": agents}, with_state=True), {"all": hp})
    found = []
    for on in (Inline(), Processes(workers=2)):
        with on.open(flow, seed=3) as run:
            for report in run:
                if report.firing == 3:
                    break
            found.append(params_sha256(run.node_state("all/learn").weights()))
    assert found[0] == found[1]
