"""Makes run directories that somebody else made, or that somebody harmed: with everything in them that only a key could give."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy

from levada.run.storage import checkpoint
from levada.run.storage.checkpoint import ARRAYS, META, REPLAYS_ZIP, list_checkpoints


class Calls:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def touch(path):
    """The code that must not run."""
    Path(path).touch()


def gadgets(marker: Path) -> dict[str, bytes]:
    """Pickles that make `marker` when they are opened, directly or through classes that environments use."""
    inner = pickle.dumps(Calls(os.system, f"touch {marker}"))
    wrapper = _with_state("gymnasium.vector.utils.misc", "CloudpickleWrapper", inner)
    return {
        "a function": inner,
        "a wrapper that unpickles": b"\x80\x04" + wrapper + b".",
        "a tuple of such": b"\x80\x04(" + wrapper + wrapper + b"t.",
        "eval": pickle.dumps(Calls(eval, f"open({str(marker)!r}, 'w').close()")),
    }


def _with_state(module: str, name: str, state: bytes) -> bytes:
    """The opcodes of an object of a class that is given these bytes as its state."""
    size = len(state).to_bytes(4, "little")
    return b"c" + f"{module}\n{name}\n".encode() + b")\x81" + b"B" + size + state + b"b"


def edit_config(run: Path, change: Callable[[dict], object]) -> None:
    """Change the settings (name -> value) as an editor does."""
    path = run / "config.json"
    config = json.loads(path.read_bytes())
    values = {name: setting["value"] for name, setting in config["settings"].items()}
    change(values)
    config["settings"] = {n: {**config["settings"].get(n, {"from": "default"}), "value": v} for n, v in values.items()}
    path.write_text(json.dumps(config))


def edit_meta(run: Path, change: Callable[[dict], object], *, seal: bool = True) -> None:
    """Change the newest meta.json; `seal`: with the right hashes, as anybody can compute them, and the key that is here."""
    path = list_checkpoints(run)[-1] / META
    record = json.loads(path.read_bytes())
    change(record)
    path.write_text(json.dumps(checkpoint.sealed(record) if seal else record))


def edit_arrays(run: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the arrays of the newest checkpoint, with the right hashes."""
    path = list_checkpoints(run)[-1] / ARRAYS
    arrays = {name: array.copy() for name, array in safetensors.numpy.load(path.read_bytes()).items()}
    change(arrays)
    data = safetensors.numpy.save(arrays)
    path.write_bytes(data)
    sums = {"arrays_bytes": len(data), "arrays_sha256": hashlib.sha256(data).hexdigest()}
    edit_meta(run, lambda record: record.update(sums))


def put_replays(run: Path, data: bytes, replays: dict[str, int]) -> None:
    """Put an archive into the newest checkpoint, with the right hashes."""
    (list_checkpoints(run)[-1] / REPLAYS_ZIP).write_bytes(data)
    sums = {"replays_bytes": len(data), "replays_sha256": hashlib.sha256(data).hexdigest()}

    def change(record):
        record.update(sums)
        record["meta"]["flow"].update(replays=replays, unsaved_replays={})

    edit_meta(run, change)
