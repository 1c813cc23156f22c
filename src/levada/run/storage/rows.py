"""Lines of metrics.jsonl, for readers that leave out damaged ones, such as those of a run that was killed.

>>> row_of(b'{"step": 64, "losses/policy_loss": 0.5}')
{'step': 64.0, 'losses/policy_loss': 0.5}
>>> row_of(b'{"step": 64, "losses/po')
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

Row: TypeAlias = dict[str, float | None]
"""Metrics by name; None: not a number."""
STEP: Final = "step"
"""Name of the env steps, which every row has."""

_DECODER: Final = msgspec.json.Decoder(Row)


def row_of(line: bytes) -> Row | None:
    """Decode a line. None: it is damaged."""
    try:
        row = _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    step = row.get(STEP)
    return None if step is None or step < 0 else row
