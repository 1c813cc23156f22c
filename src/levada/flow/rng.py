"""The state of numpy's default generator as an array, for checkpoints.

>>> one, other = np.random.default_rng(1), np.random.default_rng(2)
>>> set_rng(other, rng_array(one))
>>> other.random() == one.random()
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_WORD = (1 << 64) - 1


def rng_array(rng: np.random.Generator) -> Array:
    """Return the state ``[6]``, uint64: state and increment of PCG64, low words first, then the unused half word."""
    known = rng.bit_generator.state
    state, inc = known["state"]["state"], known["state"]["inc"]
    words = [state & _WORD, state >> 64, inc & _WORD, inc >> 64, known["has_uint32"], known["uinteger"]]
    return np.array(words, np.uint64)


def set_rng(rng: np.random.Generator, state: Array) -> None:
    """Restore a state."""
    words = [int(word) for word in state]
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": words[0] | words[1] << 64, "inc": words[2] | words[3] << 64},
        "has_uint32": words[4],
        "uinteger": words[5],
    }
