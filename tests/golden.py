"""Golden `params_sha256` of short runs: a change that should not change learning shows with them that it does not.

    python tests/golden.py --write     # at the old commit
    python tests/golden.py             # at the new one, on the same machine: what differs is listed, and the exit status is 1
    python tests/golden.py ppo dqn     # some algorithms alone

Every algorithm, inline and on two processes, at lag 0 and 1 where the algorithm has the choice, in one go and resumed; and the
parts that are options. Bits depend on the maker of the processor, so golden.json keeps them by what
`levada.portable.machine` says.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["LEVADA_PORTABLE"] = "on"
import levada as lv  # isort: skip
import torch

from levada import portable

HERE = Path(__file__).resolve().parent
RECORD = HERE / "golden.json"
UPDATES = 4
ROLLOUTS: dict[str, Any] = {"shards": 2, "num_envs": 2, "num_steps": 8, "hidden_sizes": (16,)}
REPLAYED: dict[str, Any] = {
    "shards": 2, "num_envs": 2, "num_steps": 4, "hidden_sizes": (16,), "learning_starts": 40, "batch_size": 16,
    "num_gradient_steps": 2,
    "samples_per_insert": 4.0, "order": "admission", "tolerance": 0.0,
}  # fmt: skip
SEQUENCES: dict[str, Any] = {**REPLAYED, "learning_starts": 10, "sequence_length": 4, "burn_in": 2, "batch_size": 4}


@dataclass(frozen=True)
class Case:
    """One run; `name` says which."""

    name: str
    algorithm: str
    env: str
    fields: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = ("inline", "processes:2")


def cases() -> Iterator[Case]:
    """All of them, but for where they run and whether they are resumed."""
    discrete, box = "CartPole-v1", "Pendulum-v1"
    epochs = {"num_epochs": 2, "minibatch_size": 16}
    for lag in (0, 1):
        yield Case(f"ppo lag {lag}", "ppo", discrete, {**ROLLOUTS, **epochs, "max_lag": lag})
        for name in ("impala", "appo"):
            yield Case(f"{name} lag {lag}", name, discrete, {**ROLLOUTS, "max_lag": lag, "order": "admission"})
    for name in ("a2c", "pg"):
        yield Case(name, name, discrete, ROLLOUTS)
    yield Case("a3c", "a3c", discrete, {**ROLLOUTS, "shards": 1, "max_lag": 0})
    for name in ("dqn", "rainbow", "apex_dqn"):
        yield Case(name, name, discrete, REPLAYED)
    for name in ("r2d2", "recurrent_sac"):
        yield Case(name, name, discrete, SEQUENCES)
    for name in ("ddpg", "td3", "sac", "apex_ddpg"):
        yield Case(name, name, box, REPLAYED)
    yield Case("ppo box", "ppo", box, {**ROLLOUTS, **epochs, "normalize_obs": True, "normalize_reward": True})
    yield Case("ppo gru", "ppo", discrete, {**ROLLOUTS, **epochs, "rnn_type": "gru", "rnn_size": 8})
    yield Case("ppo images", "ppo", "support.envs.pixels:Pixels-v0", {**ROLLOUTS, **epochs})
    yield Case("ppo groups", "ppo", discrete, {**ROLLOUTS, **epochs, "num_groups": 2})
    yield Case("impala replay", "impala", discrete, {**ROLLOUTS, "replay_ratio": 1.0}, ("inline",))
    yield Case("sac discrete", "sac", discrete, REPLAYED)
    yield Case("dqn prioritized", "dqn", discrete, {**REPLAYED, "prioritized": True, "dueling": True, "n_step": 3})
    yield Case("dqn quantile", "dqn", discrete, {**REPLAYED, "distribution": "quantile", "num_atoms": 8})
    yield Case("dqn images", "dqn", "support.envs.pixels:Pixels-v0", REPLAYED)


def runs(case: Case) -> Iterator[tuple[str, str]]:
    """Name and hash of each way to run it."""
    for place in case.places:
        for resumed in (False, True):
            with tempfile.TemporaryDirectory() as scratch:
                first = f"updates={UPDATES // 2 if resumed else UPDATES}"
                run = lv.train(
                    case.algorithm, case.env, until=first, seed=3, on=place, out=Path(scratch) / "run", display="quiet",
                    log="none", portable="on", save_replays="learning_starts" in case.fields, **case.fields,
                )  # fmt: skip
                if resumed:
                    run = lv.resume(run.path, until=f"updates={UPDATES}", display="quiet")
                yield f"{case.name}, {place}{', resumed' if resumed else ''}", run.summary.params_sha256


def machine() -> str:
    """What the bits depend on."""
    found = portable.machine()
    levels = {name: level for name, level in found.items() if name != "processor"}
    return json.dumps({"maker": found["processor"].split(" ")[0], **levels, "torch": torch.__version__}, sort_keys=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", help="by default all")
    parser.add_argument("--write", action="store_true", help="record in place of comparing")
    words = parser.parse_args()
    sys.path.insert(0, str(HERE))
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known = record.get(machine(), {})
    if not known and not words.write:
        print(f"golden.json knows no machine like this one: {machine()}", file=sys.stderr)
        return 2
    found = {
        name: digest[:16]
        for case in cases() if not words.algorithms or case.algorithm in words.algorithms
        for name, digest in runs(case)
    }  # fmt: skip
    if words.write:
        RECORD.write_text(json.dumps({**record, machine(): {**known, **found}}, indent=1) + "\n")
        print(f"{len(found)} hashes in {RECORD}")
        return 0
    other = [name for name, digest in found.items() if known.get(name) != digest]
    print("\n".join(f"differs: {name}" for name in other) or f"{len(found)} hashes equal")
    return int(bool(other))


if __name__ == "__main__":
    raise SystemExit(main())
