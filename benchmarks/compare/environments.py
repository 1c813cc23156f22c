"""The peers' virtual environments, one each in `.bench/`, made anew when the pins change.

What `libraries/requirements-<peer>.txt` pins is installed as it comes. If there is a folder `libraries/source-<peer>/`, what its
`requirements.txt` pins is built from source after that, with the packages that are there, and with the folder's
`sitecustomize.py` loaded into every Python process of the build.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final

from benchmarks.compare.common import CACHE, SCRIPTS, BenchmarkError, tail
from benchmarks.compare.processes import started
from benchmarks.compare.screen import Screen

_POLL_S: Final = 0.2


def peer_python(peer: str) -> Path:
    """The interpreter of a peer."""
    return CACHE / f"venv-{peer}" / "bin" / "python"


def pins(peer: str) -> dict[str, str]:
    """Everything that is installed there: package -> version."""
    files = [_requirements(peer), _source(peer) / "requirements.txt"]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def prepare_environment(peer: str, screen: Screen) -> None:
    """Make the virtual environment of a peer, unless it is there with these very pins."""
    source = _source(peer)
    recipe = [_requirements(peer), *sorted(source.glob("*.*"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in recipe) + sys.version.encode()).hexdigest()
    folder = CACHE / f"venv-{peer}"
    mark = folder / "requirements.sha256"
    if mark.exists() and mark.read_text() == digest:
        return
    pip = [str(peer_python(peer)), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
    commands: list[tuple[list[str], dict[str, str]]] = [
        ([sys.executable, "-m", "venv", "--clear", str(folder)], {}),
        ([*pip, "-r", str(_requirements(peer))], {}),
    ]
    if source.exists():  # not into pip's cache: it is built for nobody else
        build = [*pip, "--no-cache-dir", "--no-deps", "--no-build-isolation", "-r", str(source / "requirements.txt")]
        commands.append((build, {"PYTHONPATH": str(source)}))
    log = CACHE / f"venv-{peer}.log"
    with log.open("wb") as output, screen.task(f"installing {peer}, once", None) as task:
        for command, variables in commands:
            with started(command, variables, output, output) as process:
                while not process.ended_within(_POLL_S):
                    task.note(tail(log, 1)[:60])
            if process.exit_code:
                msg = f"cannot install {peer}, exit code {process.exit_code}:\n{tail(log)}"
                raise BenchmarkError(msg)
    mark.write_text(digest)


def _requirements(peer: str) -> Path:
    return SCRIPTS / f"requirements-{peer}.txt"


def _source(peer: str) -> Path:
    return SCRIPTS / f"source-{peer}"
