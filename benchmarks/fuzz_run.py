"""Corrupt the files of a run, by bytes and by fields, and check that opening it ends well.

    python benchmarks/fuzz_run.py --cases 1000 --seed 0

Each case copies a small run, corrupts one or two of its files, and calls a command in a separate process, which may take 2
GiB more than at its start. Half of the runs are foreign: signed with a key that is not the machine's. Rewritten files have
the right SHA-256, which anybody can compute. A case passes if

- it ends within a minute without being killed, with exit code 0 or 2 (1 if the signed or trusted state
  of a shard does not fit, or if an update computed from its values is not finite);
- exit code 2 comes with at most three lines of output, beside one warning per skipped checkpoint;
- the output contains no terminal control characters and no traceback;
- no code of the run was executed: a module, a file, a pickle (not checked after `--trust`).

The same seed gives the same corruption.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import select
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from safetensors import SafetensorError

import levada
import levada.cli
from levada.run.storage import checkpoint

LIMIT_S = 60.0
MORE_BYTES = 2 << 30
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "hidden_sizes": (8,),
    "compile": False,
    "display": "quiet",
    "log": "none",
}
COMMANDS = (
    "eval run --episodes 1",
    "eval run --episodes 1 --json",
    "eval run --episodes 1 --trust",
    "resume run --until updates=6",
    "resume run --until updates=6 --fresh-episodes",
    "resume run --until updates=6 --trust",
)
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**31, 2**53 + 1, 10**9, 10**30, -(10**30), 0.5, -1e308, 1e308, "", "x", "\x1b[31m\x07",
    "\x00", "\u202e", "\ud800", "inf", "nan", "evil:X", "evil.X", "run/evil.py:X", "../evil.py:X", "evil:CartPole-v1",
    "levada.cli.__main__:X", "/etc/passwd", "~", "9" * 5000, "steps=1e400", "processes:2,hang_timeout_s=inf", "threads:99999",
    [], {}, [[]], [None], {"": ""}, [0] * 1000, {"value": 1}, ["rollout", 0], [["rollout", 10**9]],
)  # fmt: skip
"""Values that replace a field."""
EVIL = "from pathlib import Path\nPath({marker!r}).touch()\nclass X: pass\n"


@dataclass(frozen=True)
class Outcome:
    """Result of a case."""

    case: int
    command: str
    harm: str
    code: int | None
    """Exit code; negative: the signal that killed it; None: it was killed after `LIMIT_S`."""
    text: str
    faults: tuple[str, ...]
    seconds: float


def make_templates(folder: Path) -> None:
    """Make small runs: rollouts, recurrent, and a replay with saved contents."""
    ppo: dict[str, Any] = {"num_steps": 16, "minibatch_size": 16, "num_epochs": 1, "checkpoint_every_updates": 2}
    levada.train("ppo", "CartPole-v1", until="updates=4", out=folder / "ppo", **SMALL, **ppo)
    levada.train("impala", "CartPole-v1", until="updates=4", out=folder / "impala", num_steps=8, max_lag=1, **SMALL)
    replay: dict[str, Any] = {
        "batch_size": 8,
        "buffer_size": 64,
        "learning_starts": 16,
        "checkpoint_every_updates": 2,
        "save_replays": True,
    }
    levada.train("dqn", "CartPole-v1", until="updates=4", out=folder / "dqn", **SMALL, **replay)


def run_case(case: int, templates: Path) -> Outcome:
    """Corrupt a copy of a run, and open it."""
    dice = random.Random(case)
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        shutil.copytree(templates / dice.choice(["ppo", "impala", "dqn"]), here / "run")
        home = os.environ["XDG_STATE_HOME"]
        marker = here / "executed"
        for place in (here / "evil.py", here / "run" / "evil.py"):
            place.write_text(EVIL.format(marker=str(marker)))
        is_foreign = dice.random() < 0.5
        os.environ["XDG_STATE_HOME"] = str(here / "attacker") if is_foreign else home
        try:
            harm = " and ".join(_harm(dice, here / "run", marker) for _ in range(dice.choice([1, 1, 1, 2])))
        finally:
            os.environ["XDG_STATE_HOME"] = home
        if is_foreign:
            os.environ["XDG_STATE_HOME"] = str(here / "other")
        command = dice.choice(COMMANDS)
        try:
            code, text, seconds = _call(command, here)
        finally:
            os.environ["XDG_STATE_HOME"] = home
        faults = _faults(code, text)
        if marker.exists() and "--trust" not in command:
            faults.append("code was executed")
    return Outcome(case, command, harm, code, text, tuple(faults), seconds)


_MAY_FAIL = ("while opening node", "NonFiniteError")
"""Allowed failures: the state of a shard does not fit, or values are finite but too large to compute an update."""


def _faults(code: int | None, text: str) -> list[str]:
    faults = []
    if code not in (0, 2) and not (code == 1 and any(words in text for words in _MAY_FAIL)):
        faults.append("no end" if code is None else f"exit code {code}")
    if "Traceback" in text:
        faults.append("traceback")
    if not all(c.isprintable() or c in "\n\t" for c in text):
        faults.append("steers the terminal")
    lines = [line for line in text.splitlines() if not line.startswith("levada: warning: ")]
    if code == 2 and not 1 <= len(lines) <= 3:
        faults.append(f"{len(lines)} lines")
    return faults


def _call(command: str, here: Path) -> tuple[int | None, str, float]:
    """Return exit code, output, and seconds."""
    start_s = perf_counter()
    pid = os.fork()
    if pid == 0:
        _be_the_command(command, here)
    with open(os.pidfd_open(pid), "rb", buffering=0, closefd=True) as ended:
        is_over = bool(select.select([ended], [], [], LIMIT_S)[0])
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # remaining workers
    text = (here / "printed").read_text(errors="surrogateescape")
    return (status if is_over else None), text, perf_counter() - start_s


def _be_the_command(command: str, here: Path) -> None:
    code = 99
    try:
        os.setsid()
        os.chdir(here)
        out = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, used + MORE_BYTES))
        code = levada.cli.main(shlex.split(command))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


# ---- corruptions


def _harm(dice: random.Random, run: Path, marker: Path) -> str:
    newest = checkpoint.list_checkpoints(run)
    kinds: list[tuple[int, Callable[[], str]]] = [
        (4, lambda: _bytes(dice, dice.choice(_files(run)))),
        (1, lambda: _kind(dice, dice.choice(_files(run)))),
        (5, lambda: _fields(dice, run / "config.json")),
        (1, lambda: _fields(dice, run / "summary.json")),
        (1, lambda: _lines(dice, run / "metrics.jsonl")),
    ]
    if newest:
        kinds += [(6, lambda: _meta(dice, newest[-1])), (4, lambda: _arrays(dice, newest[-1], marker))]
    harm = dice.choices([harm for _, harm in kinds], [weight for weight, _ in kinds])[0]
    try:
        return harm()
    except (
        OSError,
        ValueError,
        KeyError,
        checkpoint.CheckpointError,
        SafetensorError,
    ) as error:  # it is already corrupted beyond that
        return f"nothing ({type(error).__name__})"


def _files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and path.suffix != ".py")


def _bytes(dice: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    at = dice.randrange(len(data) + 1)
    size = dice.choice([1, 8, 100])
    what = dice.choice(["bit", "zeros", "cut", "insert", "delete", "append", "repeat"])
    if what == "bit" and data:
        data[at % len(data)] ^= 1 << dice.randrange(8)
    elif what == "zeros":
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif what == "cut":
        del data[at:]
    elif what == "insert":
        data[at:at] = dice.randbytes(size)
    elif what == "delete":
        del data[at : at + size]
    elif what == "append":
        data += dice.randbytes(size)
    else:
        data[at:at] = data[max(0, at - size) : at] * 3
    path.write_bytes(data)
    return f"{path.name}: {what} at {at}"


def _kind(dice: random.Random, path: Path) -> str:
    what = dice.choice(["missing", "empty", "pipe", "zero", "loop", "folder", "holes", "link"])
    if what == "link":
        shutil.copy(path, path.parent.parent / f"{path.name}.elsewhere")
    path.unlink()
    if what == "empty":
        path.touch()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "zero":
        path.symlink_to("/dev/zero")
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(path.parent.parent / f"{path.name}.elsewhere")
    elif what == "holes":
        path.touch()
        os.truncate(path, 1 << 40)
    return f"{path.name}: {what}"


def _fields(dice: random.Random, path: Path) -> str:
    known = json.loads(path.read_bytes())
    said = _change(dice, known)
    path.write_text(json.dumps(known))
    return f"{path.name}: {said}"


def _lines(dice: random.Random, path: Path) -> str:
    lines = path.read_bytes().splitlines()
    at = dice.randrange(len(lines))
    line = json.loads(lines[at])
    said = _change(dice, line)
    lines[at] = json.dumps(line).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return f"{path.name}, line {at}: {said}"


def _meta(dice: random.Random, folder: Path) -> str:
    record = json.loads((folder / checkpoint.META).read_bytes())
    said = _change(
        dice, record if dice.random() < 0.2 else record["meta"]["flow" if dice.random() < 0.8 else "monitor"]
    )
    _put(folder, record)
    return f"meta.json: {said}"


def _put(folder: Path, record: dict[str, Any]) -> None:
    (folder / checkpoint.META).write_text(json.dumps(checkpoint.sealed(record)))


def _change(dice: random.Random, known: Any) -> str:
    """Change one nested field."""
    parent, key = dice.choice(list(_places(known)))
    what = dice.choice(["put", "put", "put", "remove", "add"])
    if what == "remove":
        del parent[key]
        return f"{key} removed"
    value = dice.choice(VALUES)
    if what == "add" and isinstance(parent, dict):
        key = dice.choice(["x", "", "\x1b[31m", "policy2"])
    parent[key] = value
    return f"{key} = {repr(value)[:40]}"


def _places(known: Any) -> Iterator[tuple[Any, Any]]:
    pairs = known.items() if isinstance(known, dict) else enumerate(known) if isinstance(known, list) else ()
    for key, value in list(pairs):
        yield known, key
        yield from _places(value)


def _arrays(dice: random.Random, folder: Path, marker: Path) -> str:
    path = folder / checkpoint.ARRAYS
    arrays = {name: array.copy() for name, array in safetensors.numpy.load(path.read_bytes()).items()}
    name = dice.choice(sorted(arrays))
    array = arrays[name]
    what = dice.choice(["kind", "shape", "numbers", "missing", "name", "empty", "many", "pickle"])
    if what == "kind":
        arrays[name] = array.astype(dice.choice(["float64", "int8", "uint64", "bool", "complex64"]))
    elif what == "shape":
        arrays[name] = array.reshape(-1)[: max(0, array.size - 1)]
    elif what == "numbers":
        fill = dice.choice([np.nan, np.inf, -np.inf, 1e30]) if array.dtype.kind == "f" else np.iinfo(array.dtype).max
        array[...] = fill
    elif what == "missing":
        del arrays[name]
    elif what == "name":
        arrays[dice.choice(["x", "learners/x/y", "shards/rollout/99/envs", "\x1b"])] = array
    elif what == "empty":
        arrays[name] = array.reshape(-1)[:0]
    elif what == "many":
        arrays[name] = np.zeros(1 << 20, array.dtype)
    else:
        gadget = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
        for key in [key for key in arrays if key.endswith("envs")]:
            arrays[key] = np.concatenate([arrays[key][:10], np.frombuffer(gadget, np.uint8)])
    data = safetensors.numpy.save(arrays)
    path.write_bytes(data)
    record = json.loads((folder / checkpoint.META).read_bytes())
    _put(folder, record | {"arrays_bytes": len(data), "arrays_sha256": hashlib.sha256(data).hexdigest()})
    return f"{name}: {what}"


def main() -> int:
    """Run the cases, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = str(Path(name) / "state")
        make_templates(Path(name))
        codes: Counter[int | None] = Counter()
        num_faults, slowest_s = 0, 0.0
        for case in range(options.seed, options.seed + options.cases):
            outcome = run_case(case, Path(name))
            codes[outcome.code] += 1
            slowest_s = max(slowest_s, outcome.seconds)
            if outcome.faults:
                num_faults += 1
                print(f"case {case}: {', '.join(outcome.faults)}: `levada {outcome.command}` after {outcome.harm}")
                print("    " + "\n    ".join(outcome.text.splitlines()[-8:]), flush=True)
    told = ", ".join(f"{num} with exit code {code}" for code, num in sorted(codes.items(), key=str))
    print(f"{options.cases} cases: {told}; {num_faults} not well; the slowest took {slowest_s:.1f} s")
    return 1 if num_faults else 0


if __name__ == "__main__":
    sys.exit(main())
