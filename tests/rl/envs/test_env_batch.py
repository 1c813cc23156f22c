"""One account of resets whatever the vector environment does, and an error for everything it may do wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from scipy import stats
from support.envs.broken import Sound
from support.envs.exact_mdp import SMALL, ExactMDP, make_exact_env

from levada.flow.errors import LevadaError
from levada.rl.data.spaces import SpaceError, leaves, map_nest
from levada.rl.envs.batch import EnvBatch, EnvError, StepResult
from levada.rl.envs.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Factory = "Callable[[], gymnasium.Env[Any, Any]]"
MODES = ("next_step", "same_step", "disabled", "serial", "async", "reused buffers")


class BufferReusingVectorEnv(VectorEnv[Any, Any, Any]):
    """Returns the same arrays every time, overwritten: as fast vector environments do."""

    def __init__(self, envs: list[gymnasium.Env[Any, Any]]) -> None:
        self._inner = SyncVectorEnv([lambda env=env: env for env in envs], copy=False)
        self.num_envs = len(envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = self._inner.single_observation_space
        self.single_action_space = self._inner.single_action_space
        self.observation_space = self._inner.observation_space
        self.action_space = self._inner.action_space
        self._buffers: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        # Seeded as SyncVectorEnv would be by EnvBatch, so that the episodes are the same.
        return self._inner.reset(seed=None if seed is None else _seeds(self.num_envs), options=options)

    def step(self, actions: Any) -> Any:
        actions[...] = actions  # writable, and not the caller's array
        obs, *rest, info = self._inner.step(actions)
        if self._buffers is None:
            self._buffers = tuple(np.copy(array) for array in rest)
        for buffer, array in zip(self._buffers, rest, strict=True):
            buffer[...] = array
        actions[...] = 0
        return obs, *self._buffers, info


def _seeds(num_envs: int) -> list[int]:
    return [int(word) >> 1 for word in np.random.SeedSequence(SEED).generate_state(num_envs)]


SEED = 11


def make_batch(mode: str, factory: Any, num_envs: int) -> EnvBatch:
    if mode == "serial":
        return EnvBatch.serial([factory() for _ in range(num_envs)])
    if mode == "reused buffers":
        return EnvBatch(BufferReusingVectorEnv([factory() for _ in range(num_envs)]))
    if mode == "async":
        return Task(factory, vectorization="async").make(num_envs)
    return EnvBatch(SyncVectorEnv([factory] * num_envs, autoreset_mode=AutoresetMode[mode.upper()]))


def drive(batch: EnvBatch, num_steps: int, seed: int = 0) -> None:
    """Reset, and step with the first action of a Discrete space."""
    batch.reset(seed)
    for _ in range(num_steps):
        batch.step([0] * batch.num_envs)


Transition = tuple[Any, ...]


def true_transitions(batch: EnvBatch, result: StepResult, obs: Any, action: Any) -> Iterator[tuple[int, Transition]]:
    """(env, (obs, action, reward, next obs, terminated, truncated)) of the rows of a step that are transitions."""
    final = {} if result.final_obs is None else {int(env): row for row, env in enumerate(result.final_obs[0])}
    for i in range(batch.num_envs):
        if result.is_reset[i]:
            continue
        following: Any = result.obs
        row = i
        if i in final:
            assert result.final_obs is not None
            following, row = result.final_obs[1], final[i]
        yield (
            i,
            (
                tuple(leaf[i].tobytes() for leaf in leaves(obs)),
                int(action[i]),
                float(result.reward[i]),
                tuple(leaf[row].tobytes() for leaf in leaves(following)),
                bool(result.terminated[i]),
                bool(result.truncated[i]),
            ),
        )


class Scripted(gymnasium.Env[Any, Any]):
    """Episodes of random lengths, 1 among them; observes (noise, step, last action) in one array used again and again."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"x": spaces.Box(-np.inf, np.inf, (3,), np.float64), "n": spaces.Discrete(100, start=10)}
        )
        self.action_space = spaces.Discrete(5)
        self._x = np.zeros(3)
        self._n = 0
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._n = 0
        self._length = int(self.np_random.integers(1, 6))
        self._x[:] = (self.np_random.normal(), 0.0, -1.0)
        return {"x": self._x, "n": 10}, {}

    def step(self, action: Any) -> Any:
        self._n += 1
        self._x[:] = (self.np_random.normal(), self._n, action)
        ended = self._n >= self._length
        terminated, truncated = ended and self._length % 2 == 0, ended and self._length != 4
        return {"x": self._x, "n": 10 + self._n}, float(self._x[0] + action), terminated, truncated, {}


def _action_of(env: int, count: int) -> int:
    return (3 * env + 7 * count) % 5


def reference_transitions(num_envs: int, num_transitions: int) -> dict[int, list[Transition]]:
    """What happens in single environments that are reset at the end, with no vector environment in between."""
    result: dict[int, list[Transition]] = {}
    for i, seed in enumerate(_seeds(num_envs)):
        env = Scripted()
        seen, transitions = env.reset(seed=seed)[0], []
        for k in range(num_transitions):
            before = _bytes(seen)
            seen, reward, terminated, truncated, _ = env.step(_action_of(i, k))
            transitions.append(
                (before, _action_of(i, k), float(np.float32(reward)), _bytes(seen), terminated, truncated)
            )
            if terminated or truncated:
                seen = env.reset()[0]
        result[i] = transitions
    return result


def _bytes(obs: dict[str, Any]) -> tuple[bytes, ...]:
    return np.int64(obs["n"] - 10).tobytes(), obs["x"].astype(np.float32).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_true_transitions(mode: str) -> None:
    num_envs, num_transitions = 3, 60
    got: dict[int, list[Transition]] = defaultdict(list)
    with make_batch(mode, Scripted, num_envs) as batch:
        obs = batch.reset(SEED)
        is_reset = np.zeros(num_envs, bool)
        while min(len(got[i]) for i in range(num_envs)) < num_transitions:
            action = np.array([_action_of(i, len(got[i])) for i in range(num_envs)])
            result = batch.step(np.where(is_reset, 4, action))
            for i, transition in true_transitions(batch, result, obs, action):
                got[i].append(transition)
            ended = result.terminated | result.truncated
            is_reset = ended if batch.autoreset_mode is AutoresetMode.NEXT_STEP else is_reset
            obs = result.obs
    reference = reference_transitions(num_envs, num_transitions)
    assert {i: got[i][:num_transitions] for i in range(num_envs)} == reference
    ends = [t[4:] for transitions in reference.values() for t in transitions if t[4] or t[5]]
    assert set(ends) == {(True, False), (False, True), (True, True)}


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled", "serial"])
def test_what_the_rows_of_an_ended_episode_hold(mode: str) -> None:
    with make_batch(mode, lambda: make_exact_env(max_episode_steps=1), 2) as batch:
        batch.reset(SEED)
        first = batch.step(np.zeros(2, int))
        assert (first.terminated | first.truncated).all()
        assert not first.is_reset.any()
        second = batch.step(np.zeros(2, int))
        if mode == "next_step":
            assert first.final_obs is None
            assert second.is_reset.all()
            assert not second.reward.any()
            assert not (second.terminated | second.truncated).any()
        else:
            assert first.final_obs is not None
            np.testing.assert_array_equal(first.final_obs[0], [0, 1])
            assert not second.is_reset.any()
            assert (second.terminated | second.truncated).all()


def count_transitions(
    mode: str, num_steps: int, next_of: Callable[[EnvBatch, StepResult], Any] | None = None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Counts [S, A, S'] of true transitions and [S] of episode starts, of the exact process under the uniform policy."""
    mdp, num_envs = SMALL, 8
    counts = np.zeros_like(mdp.probability)
    starts = np.zeros(mdp.num_states)
    rng = np.random.default_rng(5)
    with make_batch(mode, make_exact_env, num_envs) as batch:
        obs: Any = batch.reset(SEED)
        np.add.at(starts, obs, 1)
        for _ in range(num_steps):
            action = rng.integers(mdp.num_actions, size=num_envs)
            result = batch.step(action)
            after: Any = result.obs
            following = after.copy()
            begun = result.is_reset
            if result.final_obs is not None:
                following[result.final_obs[0]] = result.final_obs[1]
                begun = result.terminated | result.truncated
            if next_of is not None:
                following = next_of(batch, result)
            real = ~result.is_reset
            np.add.at(counts, (obs[real], action[real], following[real]), 1)
            if next_of is None:  # reward and end are functions of the transition
                s, a, t = obs[real], action[real], following[real]
                np.testing.assert_allclose(result.reward[real], mdp.reward[s, a, t])
                np.testing.assert_array_equal(result.terminated[real], mdp.terminal[s, a, t])
            np.add.at(starts, after[begun], 1)
            obs = after
    return counts, starts


def chisquare_of_transitions(counts: np.ndarray[Any, Any], mdp: ExactMDP) -> float:
    """Whether the next states have their true probabilities: one test over all pairs (s, a), each with its own counts."""
    statistic, freedom = 0.0, 0
    for s, a in np.ndindex(mdp.num_states, mdp.num_actions):
        possible = mdp.probability[s, a] > 0
        if counts[s, a][~possible].any():
            return 0.0
        expected = counts[s, a].sum() * mdp.probability[s, a][possible]
        assert expected.min() > 5
        statistic += stats.chisquare(counts[s, a][possible], expected).statistic
        freedom += int(possible.sum()) - 1
    return float(stats.chi2.sf(statistic, freedom))


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled", "serial"])
def test_no_transition_is_lost_doubled_or_biased_at_the_ends_of_episodes(mode: str) -> None:
    counts, starts = count_transitions(mode, num_steps=2500)
    assert chisquare_of_transitions(counts, SMALL) > 1e-3
    assert stats.chisquare(starts, starts.sum() * SMALL.start).pvalue > 1e-3
    # Visits within an episode depend on each other, so their number is compared episode by episode, within 4 %.
    expected = SMALL.occupancy(SMALL.uniform_policy(), max_episode_steps=6)
    assert counts.sum() / starts.sum() == pytest.approx(expected.sum(), rel=0.04)
    busy = expected > 0.05
    np.testing.assert_allclose(counts[busy] / starts.sum(), expected[busy], rtol=0.15)


def test_the_chisquare_sees_the_usual_mistake() -> None:
    """Taking `obs` for the next observation in SAME_STEP mode learns from transitions that never were."""
    counts, _ = count_transitions("same_step", num_steps=500, next_of=lambda batch, result: result.obs)
    assert chisquare_of_transitions(counts, SMALL) < 1e-6


def test_exact_values_agree_with_simulation() -> None:
    """The yardstick itself: V^pi by the linear solve against discounted returns."""
    mdp, discount = SMALL, 0.9
    policy = np.array([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [0.9, 0.1], [0.5, 0.5]])
    v = mdp.value(policy, discount)
    np.testing.assert_allclose((policy * mdp.action_value(policy, discount)).sum(axis=1), v)
    rng = np.random.default_rng(0)
    num, state = 4000, np.repeat(1, 4000)
    total, alive, weight = np.zeros(num), np.ones(num, bool), 1.0
    for _ in range(80):
        action = (rng.random(num) > policy[state, 0]).astype(int)
        draws = rng.random((num, 1)) > np.cumsum(mdp.probability[state, action], axis=1)
        following = np.minimum(draws.sum(axis=1), mdp.num_states - 1)
        total += alive * weight * mdp.reward[state, action, following]
        alive &= ~mdp.terminal[state, action, following]
        state, weight = following, weight * discount
    assert total.mean() == pytest.approx(v[1], abs=4 * total.std() / num**0.5)


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_no_later_step_changes_a_result(mode: str) -> None:
    with make_batch(mode, Scripted, 2) as batch:
        kept: list[tuple[Any, Any]] = []
        obs = batch.reset(SEED)
        kept.append((obs, map_nest(np.copy, obs)))
        for k in range(30):
            action = np.array([k % 5, 1])
            result = batch.step(action)
            final = () if result.final_obs is None else result.final_obs
            values = (result.obs, result.reward, result.terminated, result.truncated, result.is_reset, final, action)
            kept.append((values, map_nest(np.copy, values)))
    for kept_now, copied_then in kept:
        for now, then in zip(leaves(kept_now), leaves(copied_then), strict=True):
            np.testing.assert_array_equal(now, then)


def test_an_environment_that_changes_its_action_does_not_change_the_callers() -> None:
    class Greedy(_Env):
        def step(self, action: Any) -> Any:
            action *= 0
            return super().step(action)

    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with EnvBatch.serial([Greedy(action_space=space)]) as batch:
        batch.reset(0)
        action = np.ones((1, 2), np.float32)
        batch.step(action)
        np.testing.assert_array_equal(action, 1.0)


# --- canonical form -----------------------------------------------------------------------------------------------


class _Env(gymnasium.Env[Any, Any]):
    """Returns what it is told to; by default a Box of two zeros and an endless episode."""

    def __init__(
        self,
        obs: Any = None,
        *,
        first: Any = None,
        reward: Any = 0.0,
        terminated: Any = False,
        truncated: Any = False,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        bad_from: int = 1,
    ) -> None:
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)
        good = np.zeros(2, np.float32)
        self._first = first if first is not None else (obs if observation_space is not None else good)
        self._good_reply = (self._first, 0.0, False, False, {})
        self._reply = (obs if obs is not None else good, reward, terminated, truncated, {})
        self._bad_from, self._n = bad_from, 0
        self.actions: list[Any] = []
        self.seeds: list[int | None] = []
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        return self._first, {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self._n += 1
        return self._reply if self._n >= self._bad_from else self._good_reply

    def close(self) -> None:
        self.closed += 1


def test_observations_are_float32_and_count_from_zero() -> None:
    space = spaces.Dict(
        {
            "f64": spaces.Box(-1, 1, (2,), np.float64),
            "d": spaces.Discrete(3, start=5),
            "m": spaces.MultiDiscrete([2, 3], start=[1, -1]),
            "b": spaces.MultiBinary(2),
            "t": spaces.Tuple([spaces.Box(0, 255, (2, 2), np.uint8), spaces.Box(-1, 1, (), np.float32)]),
        }
    )
    obs = {
        "f64": np.array([0.25, 0.5]),
        "d": np.int64(7),
        "m": np.array([2, 0]),
        "b": np.array([0, 1], np.int8),
        "t": (np.full((2, 2), 200, np.uint8), 0.5),
    }
    for mode in ("serial", "same_step", "next_step"):
        with make_batch(mode, lambda: _Env(obs, observation_space=space), 2) as batch:
            seen: Any = batch.reset(0)
            seen = batch.step(np.zeros(2, int)).obs
            assert seen["f64"].dtype == np.float32
            np.testing.assert_array_equal(seen["f64"], [[0.25, 0.5]] * 2)
            np.testing.assert_array_equal(seen["d"], [2, 2])
            np.testing.assert_array_equal(seen["m"], [[1, 1]] * 2)
            np.testing.assert_array_equal(seen["b"], [[0, 1]] * 2)
            assert seen["t"][0].dtype == np.uint8
            np.testing.assert_array_equal(seen["t"][1], np.float32([0.5, 0.5]))
            assert batch.observation_space["d"] == spaces.Discrete(3)  # type: ignore[index]


def _sent(space: spaces.Space[Any], actions: Any, mode: str = "serial") -> list[Any]:
    envs = [_Env(action_space=space) for _ in range(len(actions))]
    remaining = iter(envs)
    with EnvBatch.serial(envs) if mode == "serial" else make_batch(mode, lambda: next(remaining), len(envs)) as batch:
        batch.reset(0)
        batch.step(actions)
    return [env.actions[0] for env in envs]


@pytest.mark.parametrize("mode", ["serial", "same_step"])
def test_actions_become_the_environments_own(mode: str) -> None:
    assert _sent(spaces.Discrete(3, start=-1), np.array([0, 2]), mode) == [-1, 1]
    assert _sent(spaces.Discrete(3, dtype=np.int32), [0, 2], mode) == [0, 2]
    assert isinstance(_sent(spaces.Discrete(3, dtype=np.int32), [0, 2], mode)[0], np.int32)
    multi = _sent(spaces.MultiDiscrete([2, 3], start=[1, 4]), np.array([[1, 2]]), mode)
    np.testing.assert_array_equal(multi, [[2, 6]])
    binary = _sent(spaces.MultiBinary(2), np.array([[True, False]]), mode)
    np.testing.assert_array_equal(binary, [[1, 0]])
    assert binary[0].dtype == np.int8
    box = spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, 2.0]), dtype=np.float64)
    clipped = _sent(box, np.array([[3.0, -50.0], [-3.0, 50.0]], np.float32), mode)
    np.testing.assert_array_equal(clipped, [[1.0, -50.0], [-1.0, 2.0]])
    assert clipped[0].dtype == np.float64


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (
            spaces.Discrete(3),
            [[0, 1]],
            r"actions have shape \(1, 2\), expected \(2,\): one action of Discrete\(3\) for each",
        ),
        (spaces.Discrete(3), [0.0, 1.0], "actions have dtype float64, expected integers"),
        (
            spaces.Discrete(3, start=1),
            [1, 3],
            r"actions \[1 3\] are outside .*: policies count from 0, expected 0 to 2",
        ),
        (spaces.Discrete(3), [-1, 0], r"actions \[-1  0\] are outside"),
        (spaces.MultiDiscrete([2, 3]), [[1, 1], [2, 1]], r"expected 0 to \[1 2\]"),
        (spaces.MultiBinary(1), [[2], [0]], "expected 0 to 1"),
        (spaces.Box(-1, 1, (1,)), [0.0, 1.0], r"actions have shape \(2,\), expected \(2, 1\)"),
        (spaces.Box(-1, 1, (1,)), [["a"], ["b"]], "expected floats"),
        (spaces.Box(-1, 1, (1,)), [[np.nan], [0.0]], "(?s)NaN or infinity: .*; are the policy's parameters NaN"),
    ],
)
def test_wrong_actions_are_refused(space: spaces.Space[Any], actions: Any, message: str) -> None:
    with EnvBatch.serial([_Env(action_space=space) for _ in range(2)]) as batch:
        batch.reset(0)
        with pytest.raises(ValueError, match=message):
            batch.step(actions)


# --- what an environment may do wrong -----------------------------------------------------------------------------

NAN = np.array([np.nan, 0.0], np.float32)
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple([spaces.Discrete(3)])})
DICT_OBS = {"a": np.zeros(2, np.float32), "b": (0,)}

STEP_ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "nan": ({"obs": NAN}, r"observation has NaN or infinity in \[nan +0\.\]"),
    "inf": ({"obs": np.array([0, np.inf], np.float32)}, "observation has NaN or infinity"),
    "float64 overflow": ({"obs": np.array([0, 1e300])}, "observation has NaN or infinity"),
    "shape": (
        {"obs": np.zeros((1, 2), np.float32)},
        r"observation has shape \(1, 2\), expected \(2,\) as declared; .* forget .reshape\(2,\)",
    ),
    "size": (
        {"obs": np.zeros(3, np.float32)},
        r"has shape \(3,\), expected \(2,\) .* does the observation_space describe",
    ),
    "none": ({"obs": [None, None]}, "observation is a list of 2, expected an array of float32"),
    "string": ({"obs": "left"}, r"observation is 'left' \(str\), expected an array"),
    "ragged": ({"obs": [[1.0], [1.0, 2.0]]}, "observation is a list of 2, expected an array"),
    "objects": ({"obs": np.array([None, None])}, "observation is an array of object with shape"),
    "dtype": (
        {"obs": np.zeros(2), "first": np.zeros(2, np.uint8), "observation_space": spaces.Box(0, 255, (2,), np.uint8)},
        "observation has dtype float64, expected uint8 as declared, and casting would change the values; declare float64",
    ),
    "discrete": (
        {"obs": 3, "first": 0, "observation_space": spaces.Discrete(3)},
        "observation is 3, outside the declared space: expected 0 to 2",
    ),
    "discrete, narrow": (
        {"obs": 256, "first": 0, "observation_space": spaces.Discrete(3, dtype=np.uint8)},
        "observation is 256, outside the declared space",
    ),
    "multi discrete": (
        {
            "obs": np.array([0, 3]),
            "first": np.array([1, 1]),
            "observation_space": spaces.MultiDiscrete([3, 3], start=[1, 1]),
        },
        r"observation is \[0 3\], outside the declared space: expected \[1 1\] to \[3 3\]",
    ),
    "no dict": (
        {"obs": 3, "first": DICT_OBS, "observation_space": DICT},
        r"observation is a int, expected a dict of \['a', 'b'\]",
    ),
    "keys": (
        {"obs": {"a": 0, "c": 1}, "first": DICT_OBS, "observation_space": DICT},
        r"a dict of \['a', 'c'\], expected \['a', 'b'\]; missing: \['b'\]; not declared: \['c'\]",
    ),
    "leaf": (
        {"obs": {"a": NAN, "b": (0,)}, "first": DICT_OBS, "observation_space": DICT},
        r"observation\['a'\] has NaN or infinity",
    ),
    "tuple": (
        {"obs": {"a": NAN, "b": (0, 1)}, "first": {"a": np.zeros(2), "b": (0,)}, "observation_space": DICT},
        r"observation\['b'\] is a tuple of 2, expected a tuple of 1|observation\['a'\]",
    ),
    "reward nan": ({"reward": float("nan")}, "reward is nan, expected a finite number of float32"),
    "reward inf": ({"reward": np.float64("inf")}, "reward is inf, expected a finite number"),
    "reward huge": ({"reward": 1e300}, r"reward is 1e\+300, expected a finite number of float32"),
    "reward none": ({"reward": None}, r"reward is None \(NoneType\), expected a number"),
    "reward string": ({"reward": "1.0"}, r"reward is '1.0' \(str\), expected a number"),
    "reward array": (
        {"reward": np.array([1.0])},
        r"reward has shape \(1,\), expected one number; did you forget .item",
    ),
    "reward list": ({"reward": [1.0]}, r"reward is \[1.0\] \(list\), expected a number"),
    "terminated": ({"terminated": None}, r"terminated is None \(NoneType\), expected a bool"),
    "truncated": ({"truncated": "no"}, r"truncated is 'no' \(str\), expected a bool"),
}


@pytest.mark.parametrize("case", STEP_ERRORS)
def test_a_broken_step_names_environment_index_step_and_what_was_expected(case: str) -> None:
    kwargs, message = STEP_ERRORS[case]
    space = kwargs.get("observation_space")
    good = {} if space is None else {"obs": kwargs["first"], "observation_space": space}
    envs = [_Env(**good), _Env(**kwargs, bad_from=3)]
    with EnvBatch.serial(envs, name="Broken-v0") as batch:
        batch.reset(SEED)
        batch.step([0, 0])
        batch.step([0, 0])
        with pytest.raises(EnvError, match=message) as caught:
            batch.step([0, 0])
    where = rf"environment 'Broken-v0', env 1 of 2, step 3, seed {SEED} \(this env: reset\(seed={_seeds(2)[1]}\)\): "
    assert re.match(where, str(caught.value))
    assert isinstance(caught.value, LevadaError)
    assert isinstance(caught.value, RuntimeError)
    assert not isinstance(caught.value, ValueError)


def test_harmless_differences_of_dtype_are_accepted() -> None:
    replies: list[dict[str, Any]] = [
        {"obs": np.array([0.5, 0.25])},
        {"obs": [0.5, 0.25]},
        {"obs": np.array([1, 2])},
        {"reward": np.float32(1.0)},
        {"reward": np.array(1.0)},
        {"reward": 1},
        {"reward": True},
        {"reward": np.float64(1.0)},
        {"terminated": np.bool_(False), "truncated": np.bool_(False)},
        {"terminated": 0, "truncated": np.array(False)},
    ]
    with EnvBatch.serial([_Env(**reply) for reply in replies]) as batch:
        batch.reset(0)
        result = batch.step([0] * len(replies))
    assert not isinstance(result.obs, dict | tuple)
    np.testing.assert_array_equal(result.obs[:3], [[0.5, 0.25], [0.5, 0.25], [1.0, 2.0]])
    np.testing.assert_array_equal(result.reward, [0, 0, 0, 1, 1, 1, 1, 1, 0, 0])
    assert result.reward.dtype == np.float32


@pytest.mark.parametrize("kind", [np.bool_, bool, int, np.array])
def test_ends_are_understood_as_any_kind_of_bool(kind: Any) -> None:
    with EnvBatch.serial([_Env(terminated=kind(True)), _Env(truncated=kind(True))]) as batch:
        batch.reset(0)
        result = batch.step([0, 0])
    np.testing.assert_array_equal(result.terminated, [True, False])
    np.testing.assert_array_equal(result.truncated, [False, True])
    assert result.final_obs is not None
    np.testing.assert_array_equal(result.final_obs[0], [0, 1])


class _Says(_Env):
    """Returns whatever it is told from reset() and step(), be it a tuple or not."""

    def __init__(self, *, reset: Any = None, step: Any = None) -> None:
        super().__init__()
        self._reset_reply, self._step_reply = reset, step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed) if self._reset_reply is None else self._reset_reply

    def step(self, action: Any) -> Any:
        return self._step_reply


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            lambda: _Says(reset=np.zeros(2)),
            r"env 0 of 1, reset, seed 0 .*: reset\(\) returned a ndarray, expected a tuple \(obs, info\)",
        ),
        (lambda: _Says(reset=(np.zeros(2), {}, 1)), r"reset\(\) returned a tuple of 3"),
        (lambda: _Says(reset=(np.zeros(3), {})), r"observation has shape \(3,\), expected \(2,\)"),
        (lambda: _Says(reset=(NAN, {})), "env 0 of 1, reset, .* observation has NaN"),
        (lambda: _Says(step=(np.zeros(2), 0.0, False, {})), "a tuple of 4, expected a tuple of 5 .* the old gym API"),
        (lambda: _Says(step=None), r"step\(\) returned a NoneType, expected a tuple of 5 \(obs, reward, terminated,"),
    ],
)
def test_a_broken_contract_of_reset_and_step(env: Callable[[], Any], message: str) -> None:
    with EnvBatch.serial([env()]) as batch, pytest.raises(EnvError, match=message):
        drive(batch, 1)


def test_environments_of_different_spaces_cannot_be_batched() -> None:
    envs = [_Env(), _Env(observation_space=spaces.Discrete(2), obs=0), _Env()]
    with pytest.raises(
        EnvError,
        match=r"environment 'odd', env 1 of 3: observation_space is Discrete\(2\), but that of environment 0 is Box",
    ):
        EnvBatch.serial(envs, name="odd")
    assert [env.closed for env in envs] == [1, 1, 1]


class _Vector(VectorEnv[Any, Any, Any]):
    """A vector environment of three that replies what it is told."""

    def __init__(
        self,
        *replies: tuple[Any, ...],
        mode: Any = AutoresetMode.NEXT_STEP,
        reset: Any = None,
        fresh: Any = None,
        space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        self.num_envs = 3
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = space or spaces.Box(-1, 1, (2,), np.float32)
        self.single_action_space = action_space or spaces.Discrete(2)
        self._first = (np.zeros((3, 2), np.float32), {}) if reset is None else reset
        self._fresh = fresh
        self._replies = list(replies)
        self.resets: list[tuple[Any, Any]] = []
        self.closings = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.resets.append((seed, options))
        return self._fresh if options is not None and self._fresh is not None else self._first

    def step(self, actions: Any) -> Any:
        return self._replies.pop(0)

    def close_extras(self, **kwargs: Any) -> None:
        self.closings += 1


def _reply(**changes: Any) -> tuple[Any, ...]:
    reply: dict[str, Any] = {
        "obs": np.zeros((3, 2), np.float32),
        "reward": np.zeros(3),
        "terminated": np.zeros(3, bool),
        "truncated": np.zeros(3, bool),
        "info": {},
    }
    return tuple((reply | changes).values())


ONE = np.array([False, True, False])
SAME = AutoresetMode.SAME_STEP
VECTOR_ERRORS: dict[str, tuple[list[dict[str, Any]], Any, str]] = {
    "shape": (
        [{"obs": np.zeros((2, 2), np.float32)}],
        None,
        r"environment '_Vector', 3 envs, step 1, seed 4: observation has shape \(2, 2\), expected \(3, 2\)",
    ),
    "nan": (
        [{"obs": np.array([[0, 0], [0, 0], [0, np.nan]], np.float32)}],
        None,
        "env 2 of 3, step 1, seed 4: observation has NaN",
    ),
    "later": (
        [{}, {"obs": np.full((3, 2), np.inf, np.float32)}],
        None,
        "env 0 of 3, step 2, .* observation has NaN or infinity",
    ),
    "reward nan": ([{"reward": np.array([0.0, np.nan, 0.0])}], None, "env 1 of 3, step 1, .* reward is nan, expected"),
    "reward huge": ([{"reward": np.array([0.0, 0.0, -1e200])}], None, "env 2 of 3, step 1, .* reward is -inf"),
    "reward shape": (
        [{"reward": np.zeros((3, 1))}],
        None,
        r"reward has shape \(3, 1\), expected \(3,\): one number for each",
    ),
    "reward text": ([{"reward": ["1", "2", "3"]}], None, r"reward is \['1', '2', '3'\], expected numbers"),
    "reward ragged": ([{"reward": [0.0, [1.0], 0.0]}], None, "reward is None, expected numbers"),
    "flag dtype": ([{"terminated": np.zeros(3)}], None, "terminated has dtype float64, expected bool"),
    "flag shape": ([{"truncated": np.zeros(2, bool)}], None, r"truncated has shape \(2,\), expected \(3,\): one bool"),
    "no final": ([{"terminated": ONE}], SAME, "env 1 of 3, step 1, .* an episode ended, but info has no 'final_obs'"),
    "final nan": (
        [{"terminated": ONE, "info": {"final_obs": np.array([None, NAN, None], object)}}],
        SAME,
        "env 1 of 3, step 1, .* final_obs has NaN or infinity",
    ),
    "final none": (
        [{"terminated": ONE, "info": {"final_obs": np.full(3, None, object)}}],
        SAME,
        r"env 1 of 3, step 1, .* final_obs is None \(NoneType\), expected an array",
    ),
    "ends at its reset": (
        [{"terminated": ONE}, {"truncated": ONE}],
        None,
        "env 1 of 3, step 2, .* an episode ended in the step that should only have reset it; .* declares AutoresetMode.NEXT_STEP",
    ),
}


@pytest.mark.parametrize("case", VECTOR_ERRORS)
def test_a_broken_vector_environment(case: str) -> None:
    replies, mode, message = VECTOR_ERRORS[case]
    env = _Vector(*(_reply(**reply) for reply in replies), mode=mode or AutoresetMode.NEXT_STEP)
    with EnvBatch(env) as batch, pytest.raises(EnvError, match=message):
        drive(batch, len(replies), seed=4)


def test_a_vector_environment_whose_reset_is_broken() -> None:
    with EnvBatch(_Vector(reset=np.zeros((3, 2)))) as batch, pytest.raises(EnvError, match="did not return a tuple"):
        batch.reset(0)
    wrong = (np.zeros((3, 2), object), {})
    with (
        EnvBatch(_Vector(reset=wrong)) as batch,
        pytest.raises(EnvError, match="reset, seed 0: observation is an array of object"),
    ):
        batch.reset(0)


def test_lists_and_other_dtypes_of_a_vector_environment_are_understood() -> None:
    reply = _reply(reward=[1, 2, 3], terminated=[0, 1, 0], truncated=np.array([0, 0, 1]), obs=np.ones((3, 2)))
    with EnvBatch(_Vector(reply)) as batch:
        batch.reset(0)
        result = batch.step([0, 0, 0])
    np.testing.assert_array_equal(result.reward, np.float32([1, 2, 3]))
    np.testing.assert_array_equal(result.terminated, [False, True, False])
    np.testing.assert_array_equal(result.truncated, [False, False, True])
    assert result.obs.dtype == np.float32  # type: ignore[union-attr]


def test_final_observations_may_come_batched() -> None:
    """As ale-py gives them: all rows, of which only the ended ones mean something."""
    final = np.arange(6, dtype=np.float32).reshape(3, 2)
    with EnvBatch(_Vector(_reply(terminated=ONE, info={"final_obs": final}), mode=SAME)) as batch:
        batch.reset(0)
        result = batch.step([0, 0, 0])
    assert result.final_obs is not None
    np.testing.assert_array_equal(result.final_obs[0], [1])
    np.testing.assert_array_equal(result.final_obs[1], [[2.0, 3.0]])


def test_disabled_resets_the_ended_rows_and_takes_no_others() -> None:
    garbage = np.full((3, 2), 9, np.float32)
    env = _Vector(
        _reply(terminated=ONE, obs=np.ones((3, 2), np.float32)), mode=AutoresetMode.DISABLED, fresh=(garbage, {})
    )
    with EnvBatch(env) as batch:
        batch.reset(0)
        result = batch.step([0, 0, 0])
    seed, options = env.resets[-1]
    assert seed is None
    np.testing.assert_array_equal(options["reset_mask"], ONE)
    np.testing.assert_array_equal(result.obs, [[1, 1], [9, 9], [1, 1]])  # type: ignore[arg-type]
    assert result.final_obs is not None
    np.testing.assert_array_equal(result.final_obs[1], [[1, 1]])


def test_while_it_is_stepped_it_says_where_it_is() -> None:
    seen: list[str] = []

    class Looking(Sound):
        def step(self, action: Any) -> Any:
            if batch.stepping_since_s is not None:
                seen.append(batch.where())
            return super().step(action)

    batch = EnvBatch.serial([Looking(), Looking()], name="Looking-v0")
    batch.reset(7)
    assert batch.stepping_since_s is None
    batch.step(np.zeros(2, np.int64))
    assert batch.stepping_since_s is None
    assert [text.partition(" (this env")[0] for text in seen] == [
        "environment 'Looking-v0', env 0 of 2, step 1, seed 7", "environment 'Looking-v0', env 1 of 2, step 1, seed 7",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", [None, "AfterLunch"])
def test_a_vector_environment_must_say_its_autoreset_mode(mode: Any) -> None:
    env = _Vector(mode=mode)
    with pytest.raises(
        EnvError, match=rf"metadata\['autoreset_mode'\] is {mode!r}, expected one of AutoresetMode.NEXT_STEP, "
    ):
        EnvBatch(env)
    assert env.closings == 1
    assert EnvBatch(_Vector(mode="SameStep")).autoreset_mode is SAME


def test_an_unsupported_space_is_refused_and_the_environment_closed() -> None:
    env = _Vector(space=spaces.Text(3))
    with pytest.raises(SpaceError, match="Text"):
        EnvBatch(env)
    assert env.closings == 1
    single = _Env(action_space=spaces.Tuple([spaces.Discrete(2)]))
    with pytest.raises(SpaceError, match="not Dict or Tuple"):
        EnvBatch.serial([single])
    assert single.closed == 1


# --- exceptions of the environment --------------------------------------------------------------------------------


class _CrashError(ZeroDivisionError):
    pass


class _Crashing(_Env):
    def __init__(self, where: str) -> None:
        super().__init__(terminated=where == "later reset")
        self._where = where

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._where == "reset" or (self._where == "later reset" and self.seeds):
            raise _CrashError("boom")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self._where == "step":
            raise _CrashError("boom")
        return super().step(action)


@pytest.mark.parametrize("where", ["reset", "step", "later reset"])
def test_an_exception_of_the_environment_keeps_its_type_and_traceback_and_says_where_it_was(where: str) -> None:
    batch = EnvBatch.serial([_Env(), _Crashing(where)], name="Crash-v0")
    with batch, pytest.raises(_CrashError, match="boom") as caught:
        drive(batch, 1, seed=3)
    when = "reset" if where == "reset" else "step 1"
    assert len(caught.value.__notes__) == 1
    assert re.match(
        rf"environment 'Crash-v0', env 1 of 2, {when}, seed 3 \(this env: reset\(seed=\d+\)\)$",
        caught.value.__notes__[0],
    )
    assert caught.traceback[-1].path.name == "test_env_batch.py"


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("where", ["reset", "step", "later reset"])
def test_exceptions_inside_a_vector_environment_are_noted_too(where: str, mode: str) -> None:
    batch = make_batch(mode, lambda: _Crashing(where), 2)
    with batch, pytest.raises(_CrashError, match="boom") as caught:
        drive(batch, 2, seed=3)
    assert re.match(
        r"environment 'SyncVectorEnv', 2 envs, (reset|step \d), seed 3$",
        caught.value.__notes__[0],
    )


# --- masks --------------------------------------------------------------------------------------------------------

MASKED = spaces.Dict({"obs": spaces.Box(-1, 1, (1,)), "action_mask": spaces.MultiBinary(5)})


def _masked_obs(*masks: list[int]) -> dict[str, Any]:
    return {"obs": np.zeros((3, 1), np.float32), "action_mask": np.array(masks, np.int8)}


def _masked_batch(mode: AutoresetMode, reply: dict[str, Any], action_space: spaces.Space[Any]) -> EnvBatch:
    first = (_masked_obs(*[[1] * 5] * 3), {})
    return EnvBatch(_Vector(_reply(**reply), mode=mode, reset=first, space=MASKED, action_space=action_space))


@pytest.mark.parametrize(
    ("action_space", "stuck"),
    [(spaces.Discrete(5), [0, 0, 0, 0, 0]), (spaces.MultiDiscrete([2, 3]), [0, 1, 0, 0, 0])],
)
def test_a_mask_that_allows_nothing_is_refused_unless_the_episode_ended(action_space: Any, stuck: list[int]) -> None:
    open_mask = [1, 0, 0, 1, 0]
    obs = _masked_obs(open_mask, stuck, open_mask)
    with _masked_batch(AutoresetMode.NEXT_STEP, {"obs": obs}, action_space) as batch:
        batch.reset(0)
        with pytest.raises(
            EnvError,
            match=re.escape(
                f"env 1 of 3, step 1, seed 0: the action mask allows no action of an episode that has not ended: {stuck}"
            ),
        ):
            batch.step(np.zeros((3, *action_space.shape), int))
    with _masked_batch(AutoresetMode.NEXT_STEP, {"obs": obs, "terminated": ONE}, action_space) as batch:
        batch.reset(0)
        seen: Any = batch.step(np.zeros((3, *action_space.shape), int)).obs
        np.testing.assert_array_equal(seen["action_mask"], [open_mask, [1] * 5, open_mask])
    fresh = _masked_obs(open_mask, open_mask, open_mask)
    info = {"final_obs": np.array([None, map_nest(lambda leaf: leaf[1], obs), None], object)}
    with _masked_batch(SAME, {"obs": fresh, "terminated": ONE, "info": info}, action_space) as batch:
        batch.reset(0)
        result = batch.step(np.zeros((3, *action_space.shape), int))
        assert result.final_obs is not None
        final: Any = result.final_obs[1]
        np.testing.assert_array_equal(final["action_mask"], [[1] * 5])
    np.testing.assert_array_equal(obs["action_mask"][1], stuck)  # the environment's own array is left alone


def test_a_first_mask_that_allows_nothing_is_refused() -> None:
    env = _Vector(reset=(_masked_obs([1] * 5, [1] * 5, [0] * 5), {}), space=MASKED, action_space=spaces.Discrete(5))
    with (
        EnvBatch(env) as batch,
        pytest.raises(EnvError, match="env 2 of 3, reset, seed 0: the action mask allows no action"),
    ):
        batch.reset(0)


# --- seeds, life cycle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["next_step", "same_step", "serial"])
def test_the_same_seed_gives_the_same_episodes_and_close_seeds_share_none(mode: str) -> None:
    def first_observations(seed: int) -> list[float]:
        with make_batch(mode, Scripted, 3) as batch:
            obs: Any = batch.reset(seed)
            return [float(x) for x in obs["x"][:, 0]]

    first = first_observations(0)
    assert first == first_observations(0)
    assert len({*first, *first_observations(1), *first_observations(2)}) == 9


def test_a_vector_environment_of_unknown_make_gets_one_hashed_seed() -> None:
    env = _Vector()
    with EnvBatch(env) as batch:
        batch.reset(0)
        batch.reset(1)
        batch.reset()
    seeds = [seed for seed, _ in env.resets]
    assert [type(seed) for seed in seeds] == [int, int, type(None)]
    assert abs(seeds[0] - seeds[1]) > 1000
    assert all(0 <= seed < 2**31 for seed in seeds[:2])


def test_later_episodes_are_not_seeded_anew() -> None:
    env = _Env(terminated=True)
    with EnvBatch.serial([env]) as batch:
        batch.reset(0)
        batch.step([0])
        batch.step([0])
    assert env.seeds == [_expected_seed(0), None, None]


def _expected_seed(seed: int) -> int:
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1


def test_step_before_reset_is_refused() -> None:
    with (
        EnvBatch.serial([_Env()], name="Early-v0") as batch,
        pytest.raises(
            RuntimeError, match=r"environment 'Early-v0': step\(\) before reset\(\); call reset\(seed\) first"
        ),
    ):
        batch.step([0])


def test_a_reset_in_the_middle_starts_everything_anew() -> None:
    with make_batch("next_step", lambda: _Env(terminated=True), 2) as batch:
        batch.reset(0)
        assert batch.step([0, 0]).terminated.all()
        batch.reset(0)
        assert not batch.step([0, 0]).is_reset.any()


def test_close_closes_every_environment_once_even_if_one_fails() -> None:
    class Sticky(_Env):
        def close(self) -> None:
            super().close()
            raise OSError("sticky")

    envs = [_Env(), Sticky(), _Env()]
    batch = EnvBatch.serial(envs)
    with pytest.raises(OSError, match="sticky"):
        batch.close()
    batch.close()
    assert [env.closed for env in envs] == [1, 1, 1]


def test_repr_and_names() -> None:
    with EnvBatch(gymnasium.make_vec("CartPole-v1", num_envs=2)) as batch:
        assert repr(batch) == "EnvBatch('CartPole-v1', num_envs=2, NEXT_STEP)"
    with EnvBatch.serial([gymnasium.make("CartPole-v1")]) as batch:
        assert repr(batch) == "EnvBatch('CartPole-v1', num_envs=1, SAME_STEP)"
    with EnvBatch.serial([_Env()]) as batch:
        assert batch.name == "_Env"
