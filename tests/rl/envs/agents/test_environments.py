"""Environments of several agents give what they give when they are stepped by hand, also after they were saved and restored."""

import importlib
import warnings
from collections import Counter
from functools import partial

import gymnasium
import numpy as np
import pyspiel
import pytest
from support.envs.multi import CartPoles, Comers, Relay

from levada.rl.data.spaces import has_action_mask, map_nest
from levada.rl.envs.agents.task import MultiAgentTask

NUM_COPIES, NUM_STEPS, SEED = 2, 200, 5
FORAGING = "gymnasium:lbforaging:Foraging-5x5-2p-1f-v3"


def module(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(path)


# ---- the same environments, stepped as their own documentation says; each yields what agents see:
# {agent: (obs, reward, terminated, truncated)} after the reset and after each step, and is sent the actions.


def parallel(make):
    def play(seed):
        env = make()
        while True:
            observations, _ = env.reset(seed=seed)
            seed = None
            actions = yield {agent: (observations[agent], 0, False, False) for agent in env.agents}
            while env.agents:
                acted = list(env.agents)
                results = env.step({agent: actions[agent] for agent in env.agents})
                observations = results[0]
                seen = {agent: tuple(result[agent] for result in results[:4]) for agent in acted}
                seen |= {agent: (observations[agent], 0, False, False) for agent in env.agents if agent not in seen}
                if env.agents:
                    actions = yield seen
            yield seen, "end"

    return play


def aec(make):
    """A round goes from one living agent's turn to the next one's."""

    def play(seed):
        env = make()
        while True:
            env.reset(seed=seed)
            seed, seen = None, {}
            for agent in env.agent_iter():
                obs, reward, terminated, truncated, _ = env.last()
                if isinstance(obs, dict):
                    obs = {"obs": obs["observation"], "action_mask": obs["action_mask"]}
                seen[agent] = (obs, reward, terminated, truncated)
                if terminated or truncated:
                    env.step(None)
                else:
                    actions = yield seen
                    seen = {}
                    env.step(actions[agent])
            yield seen, "end"

    return play


def open_spiel(name, is_late=False, **parameters):
    """Chance outcomes are drawn as NumPy draws from a distribution with one uniform number.

    `is_late`: whether the game gives the rewards of an action only after the chance events behind it.
    """

    def play(seed):
        game, rng = pyspiel.load_game(name, parameters), np.random.default_rng(seed)
        players = range(game.num_players())

        def obs(state, player):
            mask = np.zeros(game.num_distinct_actions(), np.int8)
            mask[[] if state.is_terminal() else state.legal_actions(player)] = 1
            tensor, shape = state.observation_tensor, game.observation_tensor_shape()
            if game.get_type().provides_information_state_tensor:
                tensor, shape = state.information_state_tensor, game.information_state_tensor_shape()
            return {"obs": np.array(tensor(player), np.float32).reshape(shape), "action_mask": mask}

        while True:
            state, new = game.new_initial_state(), np.zeros(len(players))
            while not state.is_terminal():
                if state.is_chance_node():
                    outcomes = state.chance_outcomes()
                    state.apply_action(rng.choice([a for a, _ in outcomes], p=[p for _, p in outcomes]))
                    continue
                new += state.rewards() if is_late else 0
                movers = players if state.is_simultaneous_node() else [state.current_player()]
                actions = yield {f"player_{p}": (obs(state, p), new[p], False, False) for p in movers}
                new[list(movers)] = 0.0
                if state.is_simultaneous_node():
                    state.apply_actions([actions[f"player_{p}"] for p in players])
                else:
                    state.apply_action(actions[f"player_{movers[0]}"])
                new += 0 if is_late else state.rewards()
            new += state.rewards() if is_late else 0
            yield {f"player_{p}": (obs(state, p), new[p], True, False) for p in players}, "end"

    return play


def foraging(**more):
    def play(seed):
        env = gymnasium.make(FORAGING.removeprefix("gymnasium:"), disable_env_checker=True, **more)
        while True:
            observations, _ = env.reset(seed=seed)
            seed, is_over = None, False
            actions = yield {f"agent_{k}": (obs, 0, False, False) for k, obs in enumerate(observations)}
            while not is_over:
                observations, rewards, terminated, truncated, _ = env.step((actions["agent_0"], actions["agent_1"]))
                is_over = terminated or truncated
                seen = {
                    f"agent_{k}": (obs, reward, terminated, truncated)
                    for k, (obs, reward) in enumerate(zip(observations, rewards, strict=True))
                }
                if not is_over:
                    actions = yield seen
            yield seen, "end"

    return play


KAZ = "butterfly.knights_archers_zombies_v11"
SPEAKER_LISTENER = {"speaker": ("speaker_0",), "listener": ("listener_0",)}
COMERS = {"a": ("agent_0", "agent_3"), "b": ("agent_1",), "c": ("agent_2",)}
EACH = {
    "CartPoles": (partial(MultiAgentTask, CartPoles), parallel(CartPoles)),
    "Comers": (partial(MultiAgentTask, Comers, policies=COMERS), parallel(Comers)),
    "Relay": (partial(MultiAgentTask, Relay), aec(Relay)),
    "spread": (
        partial(MultiAgentTask, "pettingzoo:mpe2.simple_spread_v3", env_kwargs={"max_cycles": 9}),
        parallel(lambda: module("mpe2.simple_spread_v3").parallel_env(max_cycles=9)),
    ),
    "speaker": (
        partial(MultiAgentTask, "pettingzoo:mpe2.simple_speaker_listener_v4", policies=SPEAKER_LISTENER),
        parallel(lambda: module("mpe2.simple_speaker_listener_v4").parallel_env()),
    ),
    "zombies": (
        partial(MultiAgentTask, f"pettingzoo:{KAZ}", env_kwargs={"max_zombies": 40, "max_cycles": 60}),
        parallel(lambda: module(f"pettingzoo.{KAZ}").parallel_env(max_zombies=40, max_cycles=60)),
    ),
    "tictactoe": (
        partial(MultiAgentTask, "pettingzoo:classic.tictactoe_v3"),
        aec(lambda: module("pettingzoo.classic.tictactoe_v3").env()),
    ),
    "connect_four": (
        partial(MultiAgentTask, "pettingzoo:classic.connect_four_v3"),
        aec(lambda: module("pettingzoo.classic.connect_four_v3").env()),
    ),
    "kuhn": (partial(MultiAgentTask, "openspiel:kuhn_poker"), open_spiel("kuhn_poker")),
    "kuhn of three": (
        partial(MultiAgentTask, "openspiel:kuhn_poker", env_kwargs={"players": 3}),
        open_spiel("kuhn_poker", players=3),
    ),
    "leduc": (partial(MultiAgentTask, "openspiel:leduc_poker"), open_spiel("leduc_poker")),
    "goofspiel": (
        partial(MultiAgentTask, "openspiel:goofspiel", env_kwargs={"num_cards": 4, "imp_info": True}),
        open_spiel("goofspiel", num_cards=4, imp_info=True),
    ),
    "hanabi": (
        partial(MultiAgentTask, "openspiel:hanabi", env_kwargs={"players": 3, "colors": 2, "ranks": 2, "hand_size": 1}),
        open_spiel("hanabi", players=3, colors=2, ranks=2, hand_size=1),
    ),
    "boxes": (
        partial(MultiAgentTask, "openspiel:coop_box_pushing", env_kwargs={"horizon": 20}),
        open_spiel("coop_box_pushing", is_late=True, horizon=20),
    ),
    "rps": (partial(MultiAgentTask, "openspiel:matrix_rps"), open_spiel("matrix_rps")),
    "foraging": (partial(MultiAgentTask, FORAGING), foraging()),
    "foraging, truncated": (
        partial(MultiAgentTask, FORAGING, env_kwargs={"max_episode_steps": 20}),
        foraging(max_episode_steps=20),
    ),
}


class Played:
    """A `Joint`, stepped with random legal actions; says what came of each step."""

    def __init__(self, task, seed=SEED):
        self.joint = task.make(NUM_COPIES, seed)
        self.rng = np.random.default_rng(1)
        self.obs = {name: seats.reset()[0] for name, seats in self.joint.seats.items()}

    def step(self):
        """Return the actions of who acted by copy, and {agent: (obs, reward, terminated, truncated)} of who has seen something.

        The observation is the true final one where an episode ended; `fresh` has what agents see that act next.
        """
        actions, acted = [{} for _ in range(NUM_COPIES)], {}
        for name, seats in self.joint.seats.items():
            chosen = np.zeros(seats.num_envs, np.int64)
            for row in np.flatnonzero(seats.acts):
                mask = self.obs[name]["action_mask"][row] if has_action_mask(seats.single_observation_space) else None
                chosen[row] = seats.single_action_space.start + (
                    self.rng.integers(seats.single_action_space.n)
                    if mask is None
                    else self.rng.choice(np.flatnonzero(mask))
                )
                copy, k = divmod(int(row), len(seats.agents))
                actions[copy][seats.agents[k]] = int(chosen[row])
            acted[name] = seats.acts.copy()
            seats.act(chosen)
        self.joint.step()
        seen, fresh = [{} for _ in range(NUM_COPIES)], [{} for _ in range(NUM_COPIES)]
        for name, seats in self.joint.seats.items():
            self.obs[name], reward, terminated, truncated, info = seats.step(None)
            for row in range(seats.num_envs):
                copy, k = divmod(row, len(seats.agents))
                obs = map_nest(lambda leaf, row=row: leaf[row], self.obs[name])
                if terminated[row] or truncated[row]:
                    last = info["final_obs"][row]
                    seen[copy][seats.agents[k]] = (last, reward[row], terminated[row], truncated[row])
                elif acted[name][row] and seats.acts[row]:
                    seen[copy][seats.agents[k]] = (obs, reward[row], False, False)
                if seats.acts[row]:
                    fresh[copy][seats.agents[k]] = obs
        return actions, seen, fresh


def same(found, expected, case):
    for one, other, what in zip(found, expected, ("obs", "reward", "terminated", "truncated"), strict=False):
        if isinstance(other, dict):
            assert one.keys() == other.keys()
            for key in other:
                np.testing.assert_array_equal(one[key], other[key], err_msg=f"{case} {what}")
        else:
            wanted = np.float32(other) if what == "reward" else other
            np.testing.assert_array_equal(one, wanted, err_msg=f"{case} {what}")


@pytest.mark.parametrize("name", EACH)
def test_it_gives_what_it_gives_by_hand(name):
    task, play = EACH[name]
    played = Played(task())
    words = [int(word) >> 1 for word in np.random.SeedSequence(SEED).generate_state(2 * NUM_COPIES)]
    hands = [play(word) for word in words[:NUM_COPIES]]
    shown = [next(hand) for hand in hands]
    counts = Counter()
    for step in range(NUM_STEPS):
        actions, seen, fresh = played.step()
        for copy, hand in enumerate(hands):
            assert actions[copy].keys() == {agent for agent, each in shown[copy].items() if not (each[2] or each[3])}
            expected = hand.send(actions[copy])
            is_over = isinstance(expected, tuple)
            if is_over:
                expected, shown[copy] = expected[0], next(hand)
                counts["episodes"] += 1
            else:
                shown[copy] = expected
            for agent, each in expected.items():
                if agent in seen[copy] or each[2] or each[3]:
                    same(seen[copy].pop(agent), each, f"step {step}, copy {copy}, {agent}:")
                    counts["results"] += 1
                    counts["rewards"] += each[1] != 0
                    counts["early ends"] += each[2] and not is_over
            for agent, each in shown[copy].items():
                if not (each[2] or each[3]):
                    same((fresh[copy].pop(agent),), each, f"step {step}, copy {copy}, {agent}, next:")
            assert not seen[copy]
            assert not fresh[copy]
    played.joint.close()
    assert counts["episodes"] >= 4
    assert counts["results"] >= 30
    assert counts["rewards"] >= 1
    assert (counts["early ends"] > 0) == (name in {"CartPoles", "Comers", "Relay"})


@pytest.mark.parametrize("name", EACH)
def test_it_goes_on_where_it_was_saved(name):
    """In an object that was made with another seed."""
    task, _ = EACH[name]
    played, again = Played(task()), Played(task(), SEED + 1)
    for _ in range(7):
        played.step()
    again.joint.restore(played.joint.save())
    again.obs, again.rng = (
        {name: seats.reset()[0] for name, seats in again.joint.seats.items()},
        np.random.default_rng(2),
    )
    played.rng = np.random.default_rng(2)
    for step in range(60):
        (actions, *found), (expected_actions, *expected) = again.step(), played.step()
        assert actions == expected_actions
        for found_copies, expected_copies in zip(found, expected, strict=True):
            for one, other in zip(found_copies, expected_copies, strict=True):
                assert one.keys() == other.keys()
                for agent in one:
                    pair = [
                        each if isinstance(each, tuple) else (each, 0.0, False, False)
                        for each in (one[agent], other[agent])
                    ]
                    same(*pair, f"step {step}, {agent}:")
    played.joint.close()
    again.joint.close()


def test_masks_are_those_of_other_environments():
    for name in ("tictactoe", "kuhn", "rps"):
        task, _ = EACH[name]
        assert task()["policy"].has_action_mask


def test_foraging_ends_by_its_own_limit_or_by_gymnasiums():
    """Its own limit terminates an episode; that of Gymnasium truncates it, and the value of the last observation counts."""
    for name, steps, flags in (("foraging", 50, (True, False)), ("foraging, truncated", 20, (False, True))):
        joint = EACH[name][0]().make(1, 0)
        seats = joint.seats["policy"]
        for step in range(1, steps + 1):
            seats.act(np.zeros(2, np.int64))
            joint.step()
            _, reward, terminated, truncated, info = seats.step(None)
            assert reward.tolist() == [0.0, 0.0]
            if step < steps:
                assert not (terminated.any() or truncated.any())
        assert [(bool(t), bool(u)) for t, u in zip(terminated, truncated, strict=True)] == [flags] * 2
        assert all(obs is not None for obs in info["final_obs"])
        joint.close()
