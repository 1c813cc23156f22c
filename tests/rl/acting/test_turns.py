"""Rows of agents that act in turns, against a slow reference that follows each agent by itself."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.rl.acting.turns import Turns


def lane(rng, num_steps):
    """One agent: where it acts, what it is rewarded, where its episodes end, and whether it acts after the last step."""
    acted, ended = np.zeros((2, num_steps), bool)
    reward = np.zeros(num_steps, np.float32)
    waits, in_episode = (
        bool(rng.integers(2)),
        bool(rng.integers(2)),
    )  # for the result of an action before the first step
    turn = bool(rng.integers(2)) and not waits
    for t in range(num_steps):
        if turn:
            acted[t], waits, in_episode = True, True, True
        turn = False
        event = rng.random()
        if in_episode and event < 0.2:
            ended[t], waits, in_episode, reward[t] = True, False, False, rng.integers(1, 9)
        if event < 0.6 and not ended[t]:
            turn, in_episode, reward[t] = True, True, rng.integers(1, 9)
    return acted, reward, ended, turn


def reference(acted, reward, ended, acts):
    """Rows (step, reward, ended at step or None), the step whose observation follows, and whether an action is pending."""
    rows, current = [], None
    for t in range(len(acted)):
        if acted[t]:
            current = [t, 0.0, None]
            rows.append(current)
        if current is not None:
            current[1] += reward[t]
            if ended[t]:
                current[2], current = t, None
    is_pending = current is not None and not acts
    return rows[: len(rows) - is_pending], rows[-1][0] if is_pending else len(acted), is_pending


@given(seed=st.integers(0, 2**32), num_steps=st.integers(1, 12), to_end=st.booleans())
def test_rows_are_those_of_each_agent(seed, num_steps, to_end):
    rng = np.random.default_rng(seed)
    lanes = [lane(rng, num_steps) for _ in range(4)]
    acted, reward, ended = (np.stack([each[k] for each in lanes], axis=1) for k in range(3))
    acts = np.array([each[3] for each in lanes])
    turns = Turns.of(acted, ended, acts, to_end=to_end)
    step = turns.rows(np.repeat(np.arange(num_steps + 1)[:, None], 4, axis=1))
    total, over = turns.sums(reward), turns.sums(ended)
    truncated = np.zeros_like(ended)
    turns.cut(over, truncated)
    for b in range(4):
        rows, following, is_pending = reference(*(each[:, b] for each in (acted, reward, ended)), acts[b])
        first = num_steps - len(rows) if to_end else 0
        own = slice(first, first + len(rows))
        assert np.flatnonzero(turns.mask[:, b]).tolist() == list(range(num_steps))[own]
        assert step[own, b].tolist() == [t for t, _, _ in rows]
        assert step[own.stop, b] == following
        assert total[own, b].tolist() == [r for _, r, _ in rows]
        assert over[own, b].tolist() == [end is not None for _, _, end in rows]
        assert total.sum(axis=0)[b] == sum(r for _, r, _ in rows)
        assert turns.is_pending[b] == is_pending
        if is_pending:
            assert turns.pending(np.repeat(np.arange(num_steps)[:, None], 4, axis=1))[b] == following
        ends = {t: first + k for k, (_, _, t) in enumerate(rows) if t is not None}
        for t in np.flatnonzero(ended[:, b]):
            assert [(row, places.tolist()) for row, places in turns.places(t, np.array([b]))] == (
                [(ends[t], [0])] if t in ends else []
            )
        if not to_end and 0 < len(rows) < num_steps:
            assert truncated[len(rows) - 1, b] == (rows[-1][2] is None)
            assert truncated[:, b].sum() <= 1


def test_places_of_several_agents_that_end_in_one_step():
    acted = np.array([[True, False, True], [False, True, False]])
    ended = np.array([[False, False, False], [True, True, True]])
    turns = Turns.of(acted, ended, np.zeros(3, bool), to_end=False)
    assert [(row, places.tolist()) for row, places in turns.places(1, np.array([0, 1, 2]))] == [(0, [0, 1, 2])]
    turns = Turns.of(acted, ended, np.zeros(3, bool), to_end=True)
    assert [(row, places.tolist()) for row, places in turns.places(1, np.array([0, 1, 2]))] == [(1, [0, 1, 2])]
