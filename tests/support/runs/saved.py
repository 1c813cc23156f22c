"""Saved runs, as they are read from a file."""

import json

from levada.run.storage.hashing import params_sha256
from levada.run.storage.state import check_fits, check_numbers, pack, unpack


def as_read(state, flow=None):
    """What is read of the state of a run that was saved. `flow`: to resume, so that its types are checked."""
    arrays, meta = pack(state)
    return unpack(arrays, json.loads(json.dumps(meta)), arrays, flow)


def learned(flow, on, learner, num_updates, *, save_at=None, state=None):
    """The hash of a learner's weights after some updates, or, at an update before, what is read of the saved run."""
    with on.open(flow, seed=1, state=state) as run:
        for report in run:
            if report.node != learner:
                continue
            if report.firing == save_at:
                saved = run.save(replays=True)
                assert saved.is_exact
                found = as_read(saved, flow)
                check_fits(flow, found, 1, tables=True)
                for name, arrays in found.learners.items():
                    check_numbers(name, arrays)
                return found
            if report.firing == num_updates:
                return params_sha256(run.node_state(learner).weights())
    raise AssertionError
