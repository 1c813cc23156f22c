"""Rejects layers that are too large to train on this machine, before memory is allocated for them."""

from __future__ import annotations

from levada.flow.errors import LevadaError
from levada.memory import machine_memory, nbytes_text

_COPIES = 4
"""Number of copies of each weight during training: the weight, its gradient, and Adam's two moments."""
_BYTES = 4
WEIGHT_NBYTES = 32
"""Number of bytes per weight of a whole network during training: those four copies, and copies for an update and for the
actors."""


class SizeError(LevadaError, ValueError):
    """Something exceeds the memory of this machine."""


def check_layer(num_inputs: int, num_outputs: int) -> None:
    """Raise SizeError if a layer does not fit into memory.

    >>> check_layer(64, 64)
    >>> try:
    ...     check_layer(1_000_000, 1_000_000)
    ... except SizeError as error:
    ...     print(str(error).partition(";")[0])
    a layer of 1,000,000 x 1,000,000 weights takes 14,901 GiB while it is learned
    """
    needed, there_is = _COPIES * _BYTES * num_inputs * num_outputs, machine_memory().total_nbytes
    if needed > there_is:
        msg = (
            f"a layer of {num_inputs:,} x {num_outputs:,} weights takes {needed / 2**30:,.0f} GiB while it is learned; this "
            f"machine has {there_is / 2**30:,.0f} GiB; expected fewer hidden units, such as hidden_sizes=(256, 256)"
        )
        raise SizeError(msg)


def check_memory_cell(num_inputs: int, rnn_size: int, num_gates: int) -> None:
    """Raise SizeError if a recurrent layer does not fit into memory.

    >>> check_memory_cell(64, 64, num_gates=4)
    """
    num_weights = num_gates * rnn_size * (num_inputs + rnn_size + 1)
    needed, there_is = WEIGHT_NBYTES * num_weights, machine_memory().total_nbytes
    if needed > there_is:
        msg = (
            f"a recurrent layer of rnn_size={rnn_size:,} has {num_weights:,} weights, which take about "
            f"{nbytes_text(needed)} while they are learned; this machine has {nbytes_text(there_is)}; expected fewer, such as "
            "rnn_size=128"
        )
        raise SizeError(msg)
