"""MPI, by mpi4py: two ranks.

    mpiexec -n 2 python transport_mpi.py ADDRESS

`pickle 5`: pickled, the arrays beside the pickle. `plain`: the item lies in one buffer whose layout both sides know, and
is received into one that is there already; nothing is pickled. Who waits in MPI, keeps a core busy.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import pkl5

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks._transport.payloads import Arrays, answer, in_one_buffer
from benchmarks._transport.turns import Writer, serve

_COMM = pkl5.Intracomm(MPI.COMM_WORLD)
_ITEM, _END = 1, 2
_LOOK_EVERY_S = 0.01


class _Mpi(Writer):
    """The first rank; the second one is told which kind of turn begins."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def begin(self, payload: str, arrays: Arrays) -> None:
        _COMM.send((self._kind, payload), 1)

    def end(self) -> None:
        _COMM.send(None, 1, _END)


class _Pickled(_Mpi):
    """Any item."""

    def send(self, item: Arrays) -> Any:
        _COMM.send(item, 1, _ITEM)
        return _COMM.recv(source=1)


class _Plain(_Mpi):
    """Items of a known layout."""

    def begin(self, payload: str, arrays: Arrays) -> None:
        super().begin(payload, arrays)
        self._data, self._views = in_one_buffer(payload)
        self._reply = np.zeros(1, np.int64)
        for name, array in arrays.items():
            self._views[name][:] = array

    def fresh(self, arrays: Arrays) -> Any:
        self._views["stamp"][:] = arrays["stamp"]

    def send(self, item: Arrays) -> Any:
        _COMM.Send(self._data, 1, _ITEM)
        _COMM.Recv(self._reply, 1)
        return self._reply[0]

    def end(self) -> None:
        _COMM.Send(self._data[:0], 1, _END)


def _read(parent: int) -> None:
    """The life of the second rank. Between turns it sleeps, so that others can be measured."""
    while True:
        while not _COMM.Iprobe(0):
            time.sleep(_LOOK_EVERY_S)
            if os.getppid() != parent:
                os._exit(1)
        kind, payload = _COMM.recv(source=0)
        if kind == "pickled":
            while (item := _COMM.recv(source=0)) is not None:
                _COMM.send(answer(item), 0)
        elif kind == "plain":
            data, views = in_one_buffer(payload)
            status, reply = MPI.Status(), np.zeros(1, np.int64)
            while True:
                _COMM.Recv(data, 0, status=status)
                if status.tag == _END:
                    break
                reply[0] = answer(views)
                _COMM.Send(reply, 0)
        else:
            return


def main() -> None:
    if _COMM.rank:
        _read(os.getppid())
        return
    serve({"MPI, pickle 5": _Pickled("pickled"), "MPI, plain": _Plain("plain")})
    _COMM.send(("end", None), 1)


if __name__ == "__main__":
    main()
