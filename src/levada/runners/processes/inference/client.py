"""The samplers' side: proxies for models at the server."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from levada.flow.errors import LevadaInternalError
from levada.runners.processes.inference.messages import Answer, Call, Exchange, FromServer, Model, Refused
from levada.runners.processes.ipc.wire import Wire

GONE = 4
"""Exit code of a worker whose inference server is gone: its work in progress cannot be finished."""


class InferenceClient:
    """Client of the server, for one worker."""

    def __init__(self, end: socket.socket) -> None:
        self._wire = Wire(end, FromServer)
        self._exchange = Exchange()
        self._num_models = 0
        self.known: dict[str, tuple[int, Any]] = {}
        """Register -> version and weights that a sampler was last called with."""

    def serve(self, factory: Callable[[], Any]) -> Any:
        """Return a proxy for the object that `factory` creates at the server."""
        self._num_models += 1
        try:
            self._wire.send(Model(self._num_models, pickle.dumps(factory)))
        except ConnectionError:
            _end()
        return _Remote(self, self._num_models)

    def call(self, model: int, method: str, register: str, args: tuple[Any, ...]) -> Any:
        """Call a method with the weights that were last loaded."""
        version, weights = self.known[register]
        for value in ((args, None), (args, weights)):
            parcel, descriptors = self._exchange.pack(value)
            try:
                self._wire.send(Call(model, method, register, version, parcel), descriptors)
                [(answer, received)] = self._wire.receive()
            except (EOFError, ConnectionError):
                _end()
            if isinstance(answer, Refused):
                raise answer.error
            if isinstance(answer, Answer):
                return self._exchange.unpack(answer.parcel, received)
        raise LevadaInternalError("the server misses weights that it was sent")


def _end() -> NoReturn:
    os._exit(GONE)


class _Remote:
    """Proxy for an object at the server."""

    def __init__(self, client: InferenceClient, model: int) -> None:
        self._client = client
        self._model = model
        self._register = ""

    def load(self, weights: Any) -> None:
        """Set the weights for the following calls."""
        for register, (_, known) in self._client.known.items():
            if known is weights:
                self._register = register
                return
        msg = "a served model was given other weights than those that its source was called with"
        raise LevadaInternalError(msg)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, method)

    def _call(self, method: str, *args: Any) -> Any:
        return self._client.call(self._model, method, self._register, args)
