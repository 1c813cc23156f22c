"""A run that is saved and goes on, under any deployment, is the run that was not interrupted."""

import os
import signal
from contextlib import suppress
from dataclasses import replace

import pytest
from support.processes import samples

from levada.flow import Flow, RunState
from levada.run.storage.hashing import params_sha256
from levada.runners import Inline
from levada.runners.processes import Processes

HALF, WHOLE = 5, 9
PLACES = {"inline": Inline(), "processes:2": Processes(workers=2)}


def until(flow: Flow, on, update: int, state: RunState | None = None) -> tuple[str, RunState]:
    """Go on until an update; the fingerprint of the parameters there, and what can be gone on from."""
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            if report.firing == update:
                return params_sha256(run.node_state("learn").weights()), run.save()
    raise AssertionError


@pytest.fixture(scope="module")
def uninterrupted() -> dict[int, str]:
    return {lag: until(samples.small_ppo(lag), Inline(), WHOLE)[0] for lag in (0, 1, 3)}


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("before", PLACES)
@pytest.mark.parametrize("after", PLACES)
def test_goes_on_bit_for_bit(uninterrupted, lag, before, after):
    flow = samples.small_ppo(lag)
    _, state = until(flow, PLACES[before], HALF)
    assert state.is_exact, state.unsaved
    assert until(flow, PLACES[after], WHOLE, state)[0] == uninterrupted[lag]


@pytest.mark.parametrize("lag", [0, 3])
def test_saved_again_and_again(uninterrupted, lag):
    flow, state, place = samples.small_ppo(lag), None, Inline()
    for update in range(1, WHOLE + 1):
        fingerprint, state = until(flow, place, update, state)
        place = Processes(workers=2) if update % 3 == 0 else Inline()
        assert state.is_exact, state.unsaved
    assert fingerprint == uninterrupted[lag]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_killed_workers_change_no_bit(uninterrupted, lag):
    """Each goes on from the state after its last ticket, and makes what was lost again, with the version it named."""
    with Processes(workers=2, max_restarts=20).open(samples.small_ppo(lag), seed=1) as run:
        for report in run:
            if report.firing == WHOLE:
                break
            with suppress(ProcessLookupError):
                os.kill(run.worker_pids[report.firing % 2], signal.SIGKILL)
        assert params_sha256(run.node_state("learn").weights()) == uninterrupted[lag]
        [channel] = run.statistics().channels.values()
        assert channel.ledger.balanced
        assert channel.ledger.lost > 0


def test_arrival_order_is_not_reproducible():
    """The negative control: with delays the result depends on timing."""
    found = {until(samples.arrival_ppo(), Processes(workers=2), WHOLE)[0] for _ in range(4)}
    assert len(found) > 1


def test_what_runs_free_goes_on_too():
    flow = samples.arrival_ppo()
    _, state = until(flow, Processes(workers=2), HALF)
    assert not state.is_exact
    assert not state.unsaved
    with Inline().open(flow, seed=1, state=state) as run:
        report = next(iter(run))
        assert (report.firing, report.versions) == (HALF + 1, {"policy": HALF + 1})
        [channel] = run.statistics().channels.values()
        assert channel.ledger.balanced
        assert channel.lag["policy"].max <= 2


def test_a_shard_whose_state_cannot_be_restored_begins_anew():
    flow = samples.small_ppo(1)
    _, state = until(flow, Inline(), HALF)
    [pickled] = [name for name in state.shards["rollout", 1] if name.startswith("env")]
    broken = {**state.shards["rollout", 1], pickled: state.shards["rollout", 1][pickled][:-10]}
    state = replace(state, shards={**state.shards, ("rollout", 1): broken})
    found = {name: until(flow, place, WHOLE, state) for name, place in PLACES.items()}
    assert len({fingerprint for fingerprint, _ in found.values()}) == 1
    for _, again in found.values():
        assert again.generations["rollout", 1] == 1  # so that it does not repeat its random numbers if it is lost now
        assert again.is_exact
