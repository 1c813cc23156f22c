"""`levada export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from levada.cli.errors import UsageError, say
from levada.cli.parse import parse_run
from levada.cli.resume import keep_to_installed
from levada.memory import nbytes_text
from levada.onnx import export as export_run
from levada.run.storage.files import short


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write the policy of a run as an ONNX file, with deterministic actions."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Directory of the run, or its URL."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File to write. By default policy.onnx in the directory of the run. Required for a run at a URL."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Policy, where several act in one environment."""
    checkpoint: Annotated[int | Literal["best"] | None, tyro.conf.arg(metavar="NUM_UPDATES|best")] = None
    """Number of updates of the checkpoint, or `best`: that with the highest return in evaluations. By default the newest one."""
    loader: bool = False
    """Also write policy.py beside it, a loader that needs NumPy and ONNX Runtime alone."""
    trust: bool = False
    """Execute code that the run names, wherever the run comes from."""
    at: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the run's own modules and files, if they have moved since training."""


def export(args: list[str]) -> int:
    """Write the file, and say how it compares with the policy."""
    options = parse_run(ExportOptions, "export", args)
    keep_to_installed(options.run, trust=options.trust)
    try:
        done = export_run(
            options.run,
            options.out,
            policy=options.policy,
            checkpoint=options.checkpoint,
            loader=options.loader,
            at=options.at,
            trust=options.trust,
        )
    except OSError as error:
        msg = f"{options.out or options.run}: the file cannot be written: {error.strerror or error}"
        raise UsageError(msg) from error
    say(
        f"{short(done.path)}: {nbytes_text(done.nbytes)}, differs from the policy by at most {done.largest_difference:.1g}"
    )
    return 0
