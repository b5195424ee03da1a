"""Serves one trace on the loopback address to a browser of this machine, and nothing else.

Whoever asks must know the token in the path, and must have meant this machine: a page of somebody else's whose name was
pointed here (DNS rebinding) is told by the Host header.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote, urlsplit

from mlbundle.errors import EnvironmentLacks, UsageError
from mlbundle.files import storage_failed
from mlbundle.trace import page

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ADDRESS = "127.0.0.1"
# What Perfetto's public UI may reach by itself.
URL_PORT = 9001
Route = Literal["page", "url", "offline"]
_HOSTS = frozenset({ADDRESS, "localhost"})
_TIMEOUT_S = 30
_CHUNK_BYTES = 1 << 20
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
    ".png": "image/png",
}


@dataclass(frozen=True)
class Offer:
    """A trace for a browser: by our page, by a link that the UI follows, or with the packaged UI.

    `ui` is where the UI lies; `build` the folder of the packaged one (for `offline`).
    """

    trace: Path
    file_name: str
    title: str
    route: Route = "page"
    ui: str = page.PUBLIC_UI
    build: Path | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(18))

    def __post_init__(self) -> None:
        """Refuse what is no place of a UI."""
        parts = urlsplit(self.ui)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(
                f"{self.ui!r} is no address of a Perfetto UI", hint=f"write for example {page.PUBLIC_UI}"
            )

    @property
    def ui_root(self) -> str:
        """Where the UI lies, without a slash at its end."""
        return self.ui.rstrip("/")

    @property
    def ui_origin(self) -> str:
        """The origin of the UI: scheme, name and port."""
        parts = urlsplit(self.ui)
        return f"{parts.scheme}://{parts.netloc}"


class TraceServer:
    """Serves an offer from `with` on, in threads of its own. Raises EnvironmentLacks when the port is taken.

    `taken` is set once a browser has all of the trace.
    """

    def __init__(self, offer: Offer, *, port: int = 0) -> None:
        self.offer = offer
        self.taken = threading.Event()
        self._serving: threading.Thread | None = None
        try:
            self.descriptor = os.open(offer.trace, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise storage_failed(error, offer.trace) from error
        try:
            self._http = _Http((ADDRESS, port), _Handler)
        except OSError as error:
            os.close(self.descriptor)
            raise _port_refused(error, port) from error
        self._http.trace = self
        self.ui_files = _ui_files(offer.build)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._http.server_address[1])

    @property
    def root(self) -> str:
        """The address under which everything lies."""
        return f"http://{ADDRESS}:{self.port}/{self.offer.token}/"

    @property
    def link(self) -> str:
        """What a browser has to open."""
        if self.offer.route == "url":
            return page.url_link(self.offer.ui_root, self.root + quote(self.offer.file_name))
        return self.root

    def __enter__(self) -> Self:
        self._serving = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._serving is not None:
            self._http.shutdown()
            self._serving.join()
        self._http.server_close()
        os.close(self.descriptor)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # A second command on the same port is told so.
    allow_reuse_port = False
    trace: TraceServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a browser that goes away is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Http
    server_version = "mlbundle"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page, the trace or a file of the UI."""
        served = self.server.trace
        path = self._path()
        if path is None:
            return
        if path == "":
            self._page()
        elif path == served.offer.file_name:
            self._trace()
        elif path in served.ui_files:
            self._file(served.ui_files[path])
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Hear from the page that the UI has the trace."""
        if self._path() == "taken" and self.server.trace.offer.route == "page":
            self._head(HTTPStatus.NO_CONTENT, "text/plain", 0)
            self.wfile.flush()
            self.server.trace.taken.set()
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_OPTIONS(self) -> None:
        """Let the UI at its own origin fetch the trace from this machine."""
        if self._path() is not None:
            extra = {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Private-Network": "true"}
            self._head(HTTPStatus.NO_CONTENT, "text/plain", 0, extra)

    def log_message(self, *_: Any) -> None:
        """Say nothing: what is asked for holds the token."""

    def _path(self) -> str | None:
        """Return what is asked for, below the token; refuses the request and returns None without a right to it."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host not in _HOSTS:
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        token, slash, rest = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.trace.offer.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        return rest

    def _page(self) -> None:
        offer = self.server.trace.offer
        nonce = secrets.token_urlsafe(16)
        if offer.route == "offline":
            body = page.redirect_page(title=offer.title, file_name=offer.file_name, nonce=nonce)
        else:
            body = page.hand_over_page(
                title=offer.title, file_name=offer.file_name, ui=offer.ui_root, nonce=nonce
            )
        self._head(HTTPStatus.OK, _TYPES[".html"], len(body), {"Content-Security-Policy": page.policy(nonce)})
        self.wfile.write(body)

    def _trace(self) -> None:
        served = self.server.trace
        size = os.fstat(served.descriptor).st_size
        self._head(HTTPStatus.OK, "application/octet-stream", size)
        self._copy(served.descriptor, size)
        if served.offer.route == "url":
            served.taken.set()

    def _file(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            media_type = _TYPES.get(path.suffix, "application/octet-stream")
            self._head(HTTPStatus.OK, media_type, size, {"Content-Security-Policy": page.UI_POLICY})
            self._copy(descriptor, size)
        finally:
            os.close(descriptor)

    def _copy(self, descriptor: int, size_bytes: int) -> None:
        """Send the bytes of an open file; several threads may read it at once."""
        offset = 0
        while offset < size_bytes:
            piece = os.pread(descriptor, min(_CHUNK_BYTES, size_bytes - offset), offset)
            if not piece:  # cut short meanwhile: the connection ends too early, which the browser sees
                return
            self.wfile.write(piece)
            offset += len(piece)
        self.wfile.flush()

    def _refuse(self, status: HTTPStatus) -> None:
        body = f"{status.value} {status.phrase}\n".encode()
        self._head(status, "text/plain", len(body))
        self.wfile.write(body)

    def _head(
        self, status: HTTPStatus, media_type: str, size_bytes: int, extra: Mapping[str, str] | None = None
    ) -> None:
        offer = self.server.trace.offer
        self.send_response(status)
        headers = {
            "Content-Type": media_type,
            "Content-Length": str(size_bytes),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            **(extra or {}),
        }
        if offer.route == "url":
            headers |= {"Access-Control-Allow-Origin": offer.ui_origin, "Vary": "Origin"}
        else:
            headers["Cross-Origin-Resource-Policy"] = "same-origin"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _ui_files(build: Path | None) -> dict[str, Path]:
    """Return what of the packaged UI can be asked for: path below the token -> file."""
    if build is None:
        return {}
    files = {f"ui/{path.relative_to(build)}": path for path in build.rglob("*") if path.is_file()}
    return files | {"ui/": build / "index.html"}


def _port_refused(error: OSError, port: int) -> EnvironmentLacks:
    what = "is taken" if error.errno == errno.EADDRINUSE else f"can't be used: {error.strerror}"
    return EnvironmentLacks(
        f"port {port} {what}",
        where=f"{ADDRESS}:{port}",
        hint="name another one with --port, or none: then a free one is chosen",
    )
