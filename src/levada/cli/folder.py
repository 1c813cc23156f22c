"""The directory of several runs of one command, which can be continued by the same command alone."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from levada.api import deployment
from levada.cli.errors import UsageError, check_at_least
from levada.run.display.printable import printable
from levada.run.planner.auto import Auto
from levada.run.storage.directory import absolute
from levada.run.storage.files import read_whole, short, write_atomic
from levada.run.storage.store import is_url
from levada.runners.statistics import num_cores

COMMAND: Final = "command.json"
"""File beside the runs with the command that they belong to, without what may change."""
_COMMAND_NBYTES: Final = 1 << 20
MAX_SEEDS: Final = 10_000
"""Maximum number of seeds of a command."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds, which are numbers and ranges.

    >>> parse_seeds("1-5"), parse_seeds("1,2,7-8")
    ((1, 2, 3, 4, 5), (1, 2, 7, 8))

    Raises:
        UsageError: it is something else, too many, or a seed twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = (word.strip() for word in part.partition("-"))
        ends = [low, high] if dash else [low, low]
        if not all(end.isascii() and end.isdigit() and len(end) <= 18 for end in ends) or int(ends[0]) > int(ends[1]):
            msg = f"--seeds {text}: expected integers >= 0 and ranges of them, such as `--seeds 1-5` or `--seeds 1,2,7`"
            raise UsageError(msg)
        if int(ends[1]) - int(ends[0]) + len(seeds) >= MAX_SEEDS:
            msg = f"--seeds {text}: more than {MAX_SEEDS:,} seeds"
            raise UsageError(msg)
        seeds += range(int(ends[0]), int(ends[1]) + 1)
    for seed in seeds:
        if seeds.count(seed) > 1:
            msg = f"--seeds {text}: seed {seed} is given {seeds.count(seed)} times; keep one"
            raise UsageError(msg)
    return tuple(seeds)


def seeds_of(seeds: str | None, seed: int, given: frozenset[str]) -> tuple[int, ...]:
    """Return the seeds of a command that has both options.

    Raises:
        UsageError: both are given, or the seeds are invalid.
    """
    if seeds is None:
        return (seed,)
    if "seed" in given:
        raise UsageError("--seed and --seeds contradict each other: leave one out")
    return parse_seeds(seeds)


@contextlib.contextmanager
def claimed(folder: Path, words: Sequence[str], option: str) -> Iterator[None]:
    """Context in which this process alone makes the runs of a command in a directory, which is noted there.

    Args:
        folder: the directory, which is made.
        words: the command, without what may change.
        option: what the user calls it in messages.

    Raises:
        UsageError: the directory belongs to another command or process, or cannot be used.
    """
    path = folder / COMMAND
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileExistsError, NotADirectoryError) as error:
        msg = f"{option}: {short(folder)} cannot be used: there is a file of that name, expected a directory"
        raise UsageError(msg) from error
    except (OSError, ValueError) as error:
        msg = f"{option}: {short(folder)} cannot be used: {getattr(error, 'strerror', None) or error}"
        raise UsageError(msg) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = f"{option}: another process makes the runs in {short(folder)}; wait until it has ended, or end it"
            raise UsageError(msg) from error
        except OSError:  # a file system without locks
            pass
        _claim(path, words, option)
        yield
    finally:
        os.close(descriptor)


def _claim(path: Path, words: Sequence[str], option: str) -> None:
    folder = path.parent
    try:
        data = read_whole(path, _COMMAND_NBYTES)
    except FileNotFoundError:
        # temporary names are those of a command.json that was being written when the process was killed
        if any(not entry.name.startswith(f".{COMMAND}.") for entry in folder.iterdir()):
            msg = f"{short(folder)} is not empty, and no command with {option} has written it; choose another --out"
            raise UsageError(msg) from None
        try:
            write_atomic(path, msgspec.json.encode(list(words)) + b"\n")
        except OSError as error:
            msg = f"{option}: {short(path)} cannot be written: {error.strerror or error}"
            raise UsageError(msg) from error
        return
    except OSError as error:
        msg = f"{option}: {short(path)} cannot be used: {error.strerror or error}"
        raise UsageError(msg) from error
    try:
        noted = msgspec.json.decode(data, type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"{option}: {short(path)} is not the command that it should hold: {printable(str(error))}"
        raise UsageError(msg) from error
    if noted != list(words):
        was = " ".join(noted if noted[:1] == ["sweep"] else ["train", *noted])
        msg = f"{short(folder)} holds the runs of another command, `levada {printable(was)}`; choose another --out"
        raise UsageError(msg)


def without(words: Sequence[str], options: Mapping[str, bool | None]) -> list[str]:
    """Arguments without these options. True: an option has one value, None: any number of them, False: none.

    >>> without(["ppo", "--seeds", "1-3", "--json", "--out=x"], {"--seeds": True, "--json": False, "--out": True})
    ['ppo']
    >>> without(["ppo", "--over", "a=1", "b=2", "--env", "C"], {"--over": None})
    ['ppo', '--env', 'C']
    """
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name not in options:
            kept.append(word)
        elif options[name] and not equals:
            del rest[:1]
        elif options[name] is None:
            while rest and not rest[0].startswith("--"):
                del rest[0]
    return kept


def folder_of(out: str | None, name: str, words: Sequence[str], option: str) -> Path:
    """Directory of the runs. By default it depends on the command, so that the same command continues its runs.

    Raises:
        UsageError: it is a URL.
    """
    if out is not None:
        if is_url(out):
            msg = f"{option} with --out {out}: expected a directory of this machine; copy the runs afterwards"
            raise UsageError(msg)
        return absolute(out)
    code = hashlib.sha256(msgspec.json.encode(list(words))).hexdigest()[:8]
    plain = "".join(char if char.isalnum() or char in "-_." else "-" for char in name)
    return absolute("runs") / f"{plain}-{option.removeprefix('--')}-{code}"


def num_parallel_of(given: int | None, on: str, threads: int) -> int:
    """Return the number of runs at a time. `given`: the option; None: as many as the cores have room for.

    Raises:
        UsageError: it is less than 1.
    """
    if given is None:
        return default_num_parallel(on, threads)
    check_at_least(1, "--num-parallel", given)
    return given


def default_num_parallel(on: str, threads: int) -> int:
    """Number of runs that the cores have room for; `auto`, and workers on all cores: one."""
    place = deployment(on)
    if isinstance(place, Auto):
        return 1
    workers = getattr(place, "workers", 1)
    cores_per_run = max(threads, num_cores() if workers is None else workers)
    return max(1, num_cores() // cores_per_run)


def check_place(on: str, option: str) -> None:
    """Reject a deployment that chooses settings for each run: they would differ among the runs.

    Raises:
        UsageError: it is one.
    """
    place = deployment(on)
    if isinstance(place, Auto) and place.changes_settings:
        msg = f"{option} with --on {on}: each run would choose settings of its own; let one run choose them, and give those"
        raise UsageError(msg)
