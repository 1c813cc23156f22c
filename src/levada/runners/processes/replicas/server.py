"""Main function of a process with learners: it executes one call at a time, and ends with the process of the run."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from threadpoolctl import ThreadpoolController

from levada.flow.patience import listening
from levada.runners.firing import resolved
from levada.runners.processes.inference.messages import Exchange
from levada.runners.processes.ipc.forwarded import Place, Places
from levada.runners.processes.ipc.wire import Wire
from levada.runners.processes.replicas.messages import Answered, Ask, Busy, Introduce, Refused, ToLearners
from levada.runners.replicas.host import LearnerHost


def learn(end: socket.socket, threads: Mapping[str, int]) -> None:
    """Run the process. `threads`: their number in each multi-threaded library, by its file."""
    set_num_threads(threads)
    wire = Wire(end, ToLearners)
    with listening(lambda what: wire.send(Busy(what))):
        _Server(wire).run()


def set_num_threads(threads: Mapping[str, int]) -> None:
    """Give each multi-threaded library its number of threads."""
    for library in ThreadpoolController().lib_controllers:
        if library.filepath in threads:
            library.set_num_threads(threads[library.filepath])


class _Server:
    """A `LearnerHost` behind a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._exchange = Exchange()
        self._places = Places()
        self._host = LearnerHost("127.0.0.1", lambda batch: resolved(batch, self._resolve))

    def run(self) -> None:
        with closing(self._host):
            while True:
                try:
                    for message, descriptors in self._wire.receive():
                        if isinstance(message, Introduce):
                            self._places.add(message.place, descriptors)
                        else:
                            self._execute(message, descriptors)
                except (EOFError, ConnectionError):  # the run is gone
                    return

    def _execute(self, message: Ask, descriptors: list[int]) -> None:
        try:
            args = self._exchange.unpack(message.parcel, descriptors)
            parcel, new = self._exchange.pack(getattr(self._host, message.method)(*args))
        except Exception as error:
            self._wire.send(Refused(error))
        else:
            self._places.forget(message.gone)
            self._wire.send(Answered(parcel), new)

    def _resolve(self, value: Any) -> Any:
        return self._places.value(value) if isinstance(value, Place) else value
