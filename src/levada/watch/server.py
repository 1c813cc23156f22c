"""The server of the live page. It reads files, and nothing that it does reaches a run.

Every address begins with a random token. Pages of other origins cannot read it, and names of hosts that lead here are refused, so
that no other page of the browser can.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from threading import Thread

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from levada.watch.messages import encode
from levada.watch.page_files import page_file
from levada.watch.tail import Tail

POLL_S = 0.2
"""Seconds between two looks at the files."""
MOST_PAGES = 16
"""Number of pages that are served at a time."""
LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""
_KINDS = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


def application(runs: Sequence[Path], token: str, *, hosts: Sequence[str], is_ending: Callable[[], bool]) -> Starlette:
    """Make the application that serves the page.

    Args:
        runs: directories of the runs, which need not exist yet.
        token: first part of every address.
        hosts: names under which the server may be reached; `*` allows any.
        is_ending: whether the server is to end, and so the streams of its pages.
    """
    num_pages = 0

    def is_allowed(request: Request) -> None:
        if not secrets.compare_digest(request.path_params["token"].encode(), token.encode()):
            raise HTTPException(404)

    async def file(request: Request) -> Response:
        is_allowed(request)
        name = request.path_params.get("name") or "index.html"
        if name not in _KINDS and name != "flow.css":
            raise HTTPException(404)
        return Response(page_file(name), media_type=_KINDS.get(name, "text/css"))

    async def events(request: Request) -> Response:
        is_allowed(request)
        if num_pages >= MOST_PAGES:
            raise HTTPException(503, f"{MOST_PAGES} pages are open already")
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def stream() -> AsyncIterator[bytes]:
        nonlocal num_pages
        tails = [Tail(path, number) for number, path in enumerate(runs)]
        num_pages += 1
        try:
            while not is_ending():
                for tail in filter(Tail.is_due, tails):
                    for message in await asyncio.to_thread(list, tail.messages()):
                        yield b"data: " + encode(message) + b"\n\n"
                yield b": \n\n"  # so that a page that is gone is noticed
                await asyncio.sleep(POLL_S)
        finally:
            num_pages -= 1
            for tail in tails:
                tail.close()

    app = Starlette(
        routes=[
            Route("/{token}/events", events),
            Route("/{token}/", file),
            Route("/{token}/{name}", file),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)), Middleware(_Headers)],
    )
    app.router.redirect_slashes = False  # a redirection would tell that there is something
    return app


class _Headers:
    """Adds the headers that keep a browser from doing anything else than showing the page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def run_server(
    runs: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    on_start: Callable[[str], None] = lambda url: None,
    ends_with: int | None = None,
) -> None:
    """Serve the page until the process is interrupted.

    Args:
        runs: directories of the runs.
        host: address to listen at.
        port: port; 0 chooses a free one.
        on_start: called with the address of the page, once it is served.
        ends_with: file descriptor of a pipe; the server stops when its other end is closed.

    Raises:
        OSError: the address is in use, or is not one of this machine.
    """
    token = secrets.token_urlsafe(24)
    hosts = ["127.0.0.1", "localhost", "[::1]"] if host in LOCAL else ["*"]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        app = application(runs, token, hosts=hosts, is_ending=lambda: server.should_exit)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off",
            timeout_graceful_shutdown=1, server_header=False,
        )  # fmt: skip
        server = uvicorn.Server(config)
        if ends_with is not None:
            Thread(target=_stop_at_end, args=(ends_with, server), daemon=True).start()
        shown = f"[{host}]" if ":" in host else host
        on_start(f"http://{shown}:{listening.getsockname()[1]}/{token}/")
        server.run(sockets=[listening])


def _stop_at_end(pipe: int, server: uvicorn.Server) -> None:
    while os.read(pipe, 1 << 10):
        pass
    server.should_exit = True
