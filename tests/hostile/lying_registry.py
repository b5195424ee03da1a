"""A web server whose every answer a test writes, for faults that no real registry can be made to have."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    port: int
    body: bytes = b""


class Exchange:
    """A request and the means to answer it, or to misbehave."""

    def __init__(self, handler: BaseHTTPRequestHandler, asked: Asked, closing: threading.Event) -> None:
        self._handler = handler
        self._closing = closing
        self.asked = asked
        self.method, self.path, self.headers = asked.method, asked.path, asked.headers
        self.sent_bytes = 0

    def read_body(self, size_bytes: int | None = None) -> bytes:
        """Read the body, or only its beginning."""
        length = int(self.headers.get("content-length", "0"))
        self.asked.body += self._handler.rfile.read(length if size_bytes is None else size_bytes)
        return self.asked.body

    def head(self, status: int, headers: dict[str, Any] | None = None) -> None:
        self._handler.send_response(status)
        for name, value in (headers or {}).items():
            self._handler.send_header(name, str(value))
        self._handler.end_headers()

    def answer(self, status: int, body: bytes = b"", headers: dict[str, Any] | None = None) -> None:
        self.head(status, {"Content-Length": len(body), **(headers or {})})
        if self.method != "HEAD":
            self.send(body)

    def send(self, data: bytes) -> None:
        self._handler.wfile.write(data)
        self._handler.wfile.flush()
        self.sent_bytes += len(data)

    def cut(self) -> None:
        """Close the connection at once."""
        self._handler.close_connection = True

    def hang(self) -> None:
        """Say nothing more until the server is stopped."""
        self._closing.wait(300)
        self.cut()

    @property
    def wanted(self) -> tuple[int, int] | None:
        """The range asked for, as (first, last)."""
        text = self.headers.get("range")
        if text is None:
            return None
        first, _, last = text.removeprefix("bytes=").partition("-")
        return int(first), int(last)

    def serve(self, data: bytes, *, headers: dict[str, Any] | None = None, ranges: bool = True) -> None:
        """Answer honestly with a blob, or with the range of it that was asked for."""
        if self.wanted is None or not ranges:
            self.answer(200, data, headers)
            return
        first, last = self.wanted
        part = data[first : last + 1]
        said = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self.answer(206, part, {"Content-Range": said, **(headers or {})})


Script = Callable[[Exchange], None]


@dataclass
class LyingRegistry:
    """Answers as `script` says; `asked` is what was asked, in order."""

    script: Script
    certificate: tuple[Path, Path] | None = None
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        outer = self
        self._closing = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, self.client_address[1])
                outer.asked.append(asked)
                exchange = Exchange(self, asked, outer._closing)
                try:
                    outer.script(exchange)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = handle_one  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if self.certificate is None else "https"
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{scheme}://{self.host}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def methods(self) -> list[str]:
        return [asked.method for asked in self.asked]

    def saw(self, secret: str) -> bool:
        """Whether a header or a body held a text."""
        return any(secret in str(asked) for asked in self.asked)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that vouches for itself; returns its file and that of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lying registry")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths
