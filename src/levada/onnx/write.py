"""Export of a trained policy to ONNX.

The file computes what `TrainedPolicy.act` computes with deterministic actions: conversion of the observation, normalization,
network, mask, the best action, squashing, clipping. It computes in float32, also for a policy whose layers are bfloat16. Before
it is kept, ONNX Runtime is compared with the policy.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import torch
from torch import nn

from levada._version import __version__
from levada.api import Result, load
from levada.api.load import LoadError
from levada.flow.errors import LevadaError
from levada.flow.mistakes import at_text
from levada.onnx.check import TOLERANCE, largest_difference
from levada.onnx.module import ActingModule
from levada.rl.acting.trained_policy import TrainedPolicy
from levada.run.display.printable import plain_warning, printable
from levada.run.storage.files import COPIES, write_atomic
from levada.run.storage.store import is_url

NEEDED: Final = ("onnx", "onnxruntime", "onnxscript")
LOADER: Final = "policy.py"
_OPSET: Final = 20
_EXAMPLE_ROWS: Final = 7
"""Number of observations with which the network is recorded: hardly the size of anything else in it."""


class ExportError(LevadaError, ValueError):
    """A policy cannot be exported."""


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    nbytes: int
    largest_difference: float
    """Largest difference from the policy, over the outputs for `NUM_CHECKED` observations."""


def export(
    run: Result | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    policy: str | None = None,
    checkpoint: int | Literal["best"] | None = None,
    loader: bool = False,
    at: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> Exported:
    """Write the policy of a run as an ONNX file with deterministic actions.

    Inputs are named `obs`, or by the paths of a nested observation (`obs/camera`), in the shapes and dtypes of the environment
    with a dimension for the batch in front; `mask` (int8, nonzero where an action is allowed) if the policy was trained with
    action masks; `state` (float32, zero at the start of an episode) if it is recurrent. Outputs are `action`, in the
    environment's format, `params`, the parameters of the distribution of actions or the action values, and `next_state`.

    Args:
        run: a result of training, the directory of a run, or its URL.
        out: file to write. None: policy.onnx in the directory of the run, which must not be at a URL.
        policy: name of the policy, where several act in one environment.
        checkpoint: number of updates of the checkpoint, for a directory, or "best"; None: the newest valid one.
        loader: also write policy.py beside it, a short loader that needs NumPy and ONNX Runtime alone.
        at: directory of the run's own modules and files, if they have moved since training.
        trust: execute code that the run names; see docs/security.md.

    Raises:
        ExportError: a package is missing, the run is at a URL and `out` is not given, there is no such policy, PyTorch cannot
            export its network, or the file differs from the policy.
        LoadError: see `levada.load`.
        OSError: the file cannot be written.
    """
    for name in NEEDED:
        if find_spec(name) is None:
            msg = f"export needs {name}: pip install 'levada[export]'"
            raise ExportError(msg)
    for name, path in (("run", run), ("out", out)):
        if not isinstance(path, str | os.PathLike | Result | None):
            msg = f"export: {name}={path!r} ({type(path).__name__}): expected a path"
            raise ExportError(msg)
    if out is not None and not Path(out).absolute().parent.is_dir():
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(out))
    if isinstance(run, Result) and (checkpoint is not None or at is not None):
        msg = (
            "export: checkpoint and at are for the directory of a run, as in levada.export(run.path, ...), got a Result"
        )
        raise LoadError(msg)
    where = run.path if isinstance(run, Result) else run
    if out is None and (is_url(where) or where in COPIES):
        msg = "export: the run is at a URL, where no file is written; give out, the file to write (--out FILE)"
        raise ExportError(msg)
    result = run if isinstance(run, Result) else load(run, checkpoint=checkpoint, at=at, trust=trust)
    trained = in_float32(_policy_of(result, policy))
    module = ActingModule(trained)
    about = {
        "levada": __version__,
        "algorithm": result.summary.algorithm,
        "env": result.summary.env,
        "updates": str(trained.version),
        "params_sha256": str(result.summary.params_sha256),
        "observation_space": str(trained.policy.env_observation_space),
        "action_space": str(trained.policy.env_action_space),
    }
    data = to_onnx(module, about)
    difference = largest_difference(trained, module, data)
    if not difference <= TOLERANCE:
        msg = f"the ONNX file differs from the policy by {difference:.2g}, expected at most {TOLERANCE:g}; it is not written"
        raise ExportError(msg)
    path = (result.path / "policy.onnx" if out is None else Path(out)).absolute()
    write_atomic(path, data)
    if loader:
        write_atomic(path.with_name(LOADER), (resources.files("levada.onnx") / "loader.py").read_bytes())
    return Exported(path, len(data), difference)


def in_float32(trained: TrainedPolicy) -> TrainedPolicy:
    """Return the policy as it acts with layers in float32: ONNX Runtime has no convolutions in bfloat16 on processors."""
    policy = replace(trained.policy, precision="float32")
    return TrainedPolicy(policy, trained.weights, version=trained.version)


def to_onnx(module: ActingModule, about: Mapping[str, str]) -> bytes:
    """Return the ONNX file of a policy; `about`: its metadata.

    Raises:
        ExportError: PyTorch cannot export the network.
    """
    import onnx

    examples = tuple(module.examples(_EXAMPLE_ROWS))
    shapes = [{0: torch.export.Dim("batch")} for _ in examples]
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                module, examples, dynamo=True, opset_version=_OPSET, dynamic_shapes=(tuple(shapes),),
                input_names=module.input_names, output_names=module.output_names, verbose=False,
            )  # fmt: skip
    except Exception as error:  # whatever the exporter raises for a network that it does not support
        msg = f"PyTorch cannot export {_name_of(module.inner.network)} to ONNX: {_reason(error)}"
        raise ExportError(msg) from error
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {**about, "layout": json.dumps(module.layout)})
    data: bytes = model.SerializeToString()
    return data


def _name_of(network: nn.Module) -> str:
    """Name the class of a network, and the user's own classes in it."""
    own = {type(each).__qualname__: None for each in network.modules() if not _is_library(type(each).__module__)}
    parts = [name for name in own if name != type(network).__qualname__]
    return f"network {type(network).__qualname__}" + (f" with {', '.join(parts)}" if parts else "")


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in ("levada", "torch")


def _reason(error: BaseException) -> str:
    """Return the first line of what began the error, and where in the user's code: the rest is advice on PyTorch."""
    while error.__cause__ is not None:
        error = error.__cause__
    said = plain_warning(str(error)).strip().partition("\n")[0]
    return f"{printable(said) or type(error).__name__}{at_text(error)}"


def _policy_of(result: Result, name: str | None) -> TrainedPolicy:
    if not result.policies:
        if name is not None and name != result.policy.policy.name:
            msg = f"{result.path} has one policy, {result.policy.policy.name!r}; leave out policy={name!r}"
            raise ExportError(msg)
        return result.policy
    if name is None or name not in result.policies:
        msg = f"{result.path} has several policies, expected policy to be one of {', '.join(result.policies)}; got {name!r}"
        raise ExportError(msg)
    return result.policies[name]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter prints and warns about its own workings."""
    roots = ("torch", "onnxscript", "onnx_ir")
    own = [
        name for name in logging.root.manager.loggerDict if name.partition(".")[0] in roots
    ]  # some have levels of their own
    loggers = [logging.getLogger(name) for name in {*roots, *own}]
    levels = [each.level for each in loggers]
    try:
        for each in loggers:
            each.setLevel(logging.ERROR)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
