"""Content of config.json: identity and settings of a run, with a keyed hash that tells where they were written."""

from __future__ import annotations

import json

import msgspec

from levada.run.identity import Identity, Setting
from levada.run.storage.trust import is_ours, sign


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Content of config.json."""

    identity: Identity
    settings: dict[str, Setting]
    versions: dict[str, str | None]
    """Versions of Python, levada, and the packages that affect results; None for those not installed."""
    format: int = 1
    """Format of the directory; 1 was written without a number."""
    hmac: str = ""
    """Keyed hash of identity and settings, which tells whether they were written by this user on this machine."""

    def sealed(self) -> RunConfig:
        """Return a copy with the keyed hash."""
        return msgspec.structs.replace(self, hmac=sign("config", self._signed()))

    @property
    def is_ours(self) -> bool:
        """Whether it was written by this user on this machine, and is unchanged."""
        return is_ours("config", self._signed(), self.hmac)

    def _signed(self) -> bytes:
        known = msgspec.to_builtins({"identity": self.identity, "settings": self.settings})
        return json.dumps(known, sort_keys=True, separators=(",", ":")).encode()
