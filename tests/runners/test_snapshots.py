"""When the state of a shard is taken: what is small always, and what is large as the time allows."""

import numpy as np
import pytest

from levada.runners import snapshots
from levada.runners.snapshots import CHEAP_BYTES, Snapshots


class Work:
    """Takes a second of processor time to save, by the clock of the tests."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.now_s = 0.0

    def state_dict(self) -> dict[str, np.ndarray]:
        self.now_s += 1.0
        return {"state": np.zeros(self.num_bytes, np.uint8)}

    def load_state_dict(self, state: object) -> None:
        raise AssertionError


@pytest.mark.parametrize(("num_bytes", "num_taken"), [(CHEAP_BYTES, 20), (CHEAP_BYTES + 1, 3)])
def test_small_states_are_taken_however_slow_the_machine_is(monkeypatch, num_bytes, num_taken):
    """What is measured decides about large ones only."""
    work = Work(num_bytes)
    monkeypatch.setattr(snapshots, "thread_time", lambda: work.now_s)
    taken = Snapshots(work)
    states = [taken.take_if_cheap(0.01, must=False) for _ in range(20)]
    assert sum(state is not None for state in states) == num_taken
    assert taken.take_if_cheap(0.01, must=True) is not None
