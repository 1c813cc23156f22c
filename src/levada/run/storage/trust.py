"""Keyed hash (HMAC-SHA-256) that tells whether data in a run directory were written by this user on this machine.

    record["hmac"] = sign("checkpoint", data)
    is_ours("checkpoint", data, record["hmac"])

The key, 32 random bytes, is created on first use: `$XDG_STATE_HOME/levada/key`, or `~/.local/state/levada/key`, readable only
by its owner. Removing or replacing it makes all older runs foreign. If it cannot be stored (no home directory, or not a
writable one), the process has a temporary key, so that only this process recognizes its runs.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
from pathlib import Path

from levada.flow.errors import LevadaError
from levada.run.storage.files import NotAFileError, open_file, write_synced

KEY_BYTES = 32

_of_this_process = secrets.token_bytes(KEY_BYTES)


class UntrustedError(LevadaError, ValueError):
    """A run that was not made here requires something that could execute code."""


def sign(purpose: str, data: bytes) -> str:
    """Return the keyed hash of `data`; `purpose`: its kind, so that the hash of one kind is never valid for another."""
    return _digest(_key()[0], purpose, data)


def is_ours(purpose: str, data: bytes, signature: object) -> bool:
    """Whether `sign` made this signature, with the key of this machine or of this process."""
    if not isinstance(signature, str) or not signature.isascii():
        return False
    return any(hmac.compare_digest(_digest(key, purpose, data), signature) for key in {_key()[0], _of_this_process})


def why_no_key() -> str:
    """Reason why no key is stored, to append to a message; empty if there is a key."""
    return _key()[1]


def key_path() -> Path:
    """Path of the key.

    Raises:
        RuntimeError: there is no home directory.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"
    return base / "levada" / "key"


def _digest(key: bytes, purpose: str, data: bytes) -> str:
    return hmac.digest(key, purpose.encode() + b"\0" + data, "sha256").hex()


def _key() -> tuple[bytes, str]:
    """Return the key, and the reason why it is not stored."""
    try:
        path = key_path()
    except RuntimeError:
        return _of_this_process, "there is no home directory to keep a key in (XDG_STATE_HOME names another place)"
    try:
        try:
            return _read(path), ""
        except FileNotFoundError:
            _make(path)
            return _read(path), ""
    except OSError as error:
        return _of_this_process, f"the key {path} cannot be used: {error.strerror}"


def _read(path: Path) -> bytes:
    descriptor = open_file(path)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise NotAFileError(errno.EPERM, "it belongs to another user", os.fspath(path))
        if found.st_mode & 0o077:
            why = f"others may read or write it; delete it, or `chmod 600 {path}`"
            raise NotAFileError(errno.EPERM, why, os.fspath(path))
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        raise NotAFileError(errno.EINVAL, f"it has not {KEY_BYTES} bytes; delete it", os.fspath(path))
    return key


def _make(path: Path) -> None:
    """Create the key atomically; if two processes create it at once, one key remains."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".key.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        write_synced(temporary, secrets.token_bytes(KEY_BYTES), mode=0o600)
        with contextlib.suppress(FileExistsError):
            _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        write_synced(target, source.read_bytes(), mode=0o600)  # a file system without hard links
