"""`mlbundle tui --web`: the same UI in a browser of this machine, through textual-serve.

There is no password. So that no page of somebody else drives it through the user's browser, requests are answered only
when they are made to this address (no name that was made to point here) and by the page that came from here.
"""

from __future__ import annotations

import shlex
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EnvironmentLacks, ToolMissing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp import web

HOST = "127.0.0.1"


def serve(flags: Sequence[str], port: int) -> None:
    """Serve `mlbundle tui FLAGS` to browsers of this machine until Ctrl-C; port 0 is a free one.

    Raises ToolMissing without textual-serve, EnvironmentLacks for a port that is taken.
    """
    if find_spec("textual_serve") is None:
        raise ToolMissing("--web needs the package textual-serve", hint="pip install 'mlbundle[web]'")
    port = _free(port)
    address = f"http://{HOST}:{port}"
    sys.stderr.write(
        f"{address}\n"
        "There is no password: whoever has an account on this machine can open it and act as you.\n"
        "Ctrl-C ends it; runs go on.\n"
    )
    sys.stderr.flush()
    command = shlex.join([sys.executable, "-P", "-m", "mlbundle", "tui", *flags])
    _server(command, port).serve()


def _free(port: int) -> int:
    """Return the port, or a free one; another program may take it in between, which is an error then."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise EnvironmentLacks(
                f"port {port} can't be had: {error.strerror}", hint="say another one, or none for a free one"
            ) from error
        return int(probe.getsockname()[1])


def _server(command: str, port: int) -> Any:
    from aiohttp import web
    from textual_serve.server import Server

    address = f"http://{HOST}:{port}"

    @web.middleware
    async def ours_only(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.host != f"{HOST}:{port}" or request.headers.get("Origin", address) != address:
            raise web.HTTPForbidden(text=f"only for {address}\n")
        response = await handler(request)
        if not response.prepared:
            response.headers.update(_headers(port))
        return response

    class OurServer(Server):
        """Without its banner, and answering nobody else."""

        def initialize_logging(self) -> None:
            """Leave the terminal to who started it."""

        async def on_startup(self, app: web.Application) -> None:
            """Say nothing: the address is told already."""

        async def _make_app(self) -> web.Application:
            app = await super()._make_app()
            app.middlewares.append(ours_only)
            return app

    # The page of our own asks for nothing from anywhere else; that of textual-serve has a font of a public server.
    pages = Path(__file__).with_name("templates")
    return OurServer(command, host=HOST, port=port, title="mlbundle", templates_path=pages)


def _headers(port: int) -> dict[str, str]:
    """Return what keeps the page from asking for anything elsewhere, whatever is in it, and from being framed."""
    policy = (
        f"default-src 'self'; connect-src 'self' ws://{HOST}:{port}; frame-ancestors 'none'; "
        "script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "font-src 'self' data:; img-src 'self' data:"
    )
    return {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
