"""What goes over a connection: requests, answers whose body is read with caps, and how patient we are."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mlbundle.errors import MlbundleError, RegistryAnswerInvalid, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import urllib3

MAX_DOCUMENT_BYTES = 4 << 20
READ_BYTES = 256 << 10
IDEMPOTENT = frozenset({"GET", "HEAD"})
_TRY_AGAIN = "try again: what has arrived is kept"


@dataclass(frozen=True, slots=True)
class Policy:
    """Patience: all times in seconds; `stall_s` is how long a connection may move no byte."""

    connect_s: float = 10.0
    stall_s: float = 60.0
    document_s: float = 120.0
    tries: int = 5
    backoff_s: float = 0.5
    max_backoff_s: float = 10.0
    max_retry_after_s: float = 60.0

    def pause_s(self, attempt: int) -> float:
        """Return how long to wait after try number `attempt` (from 0): exponential, with jitter."""
        ceiling = min(self.max_backoff_s, self.backoff_s * 2.0**attempt)
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the load, keeps no secret


class ConnectionCut(RegistryUnavailable):
    """The connection broke or stalled in the middle of an answer: what came is good, the rest can be asked for."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what must stay the same for credentials to go along."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """Return the origin of a URL; raises RegistryAnswerInvalid unless it is plain http or https."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise RegistryAnswerInvalid("an address can't be used", where=shown(url))
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


def shown(url: str) -> str:
    """Return a URL for errors: without its query, which may hold a signature that opens the blob to everybody."""
    return url.partition("?")[0][:200]


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `body` is bytes, or makes the pieces anew for every try (then `body_bytes` is their sum)."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | Callable[[], Iterable[memoryview]] | None = None
    body_bytes: int = 0
    repeatable: bool | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether sending it twice does the same as sending it once."""
        return self.method in IDEMPOTENT if self.repeatable is None else self.repeatable


class Answer:
    """The answer to a request; its body is not read yet. Close it, or read it to its end."""

    def __init__(
        self,
        response: urllib3.BaseHTTPResponse,
        request: Request,
        *,
        url: str,
        policy: Policy,
        live: set[Answer],
    ) -> None:
        self.status = response.status
        self.url = url
        self._is_head = request.method == "HEAD"
        self._response = response
        self._policy = policy
        self._live = live
        live.add(self)

    def header(self, name: str) -> str | None:
        """Return a header, or None; several of one name are joined by commas."""
        value = self._response.headers.get(name)
        return None if value is None else str(value)

    @property
    def length(self) -> int | None:
        """The Content-Length, or None; raises RegistryAnswerInvalid when it is no number."""
        text = self.header("Content-Length")
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            raise RegistryAnswerInvalid(f"Content-Length is {ascii(text)[:60]}", where=shown(self.url))
        return int(text)

    def blocks(self) -> Iterator[bytes]:
        """Yield the body in blocks of at most 1 MiB; raises ConnectionCut when it stalls or breaks off."""
        try:
            while True:
                with self._cut_as_error():
                    block = self._response.read(READ_BYTES, decode_content=False)
                if not block:
                    return
                yield block
        finally:
            self.close()

    def document(self, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """Return the whole body; raises RegistryAnswerInvalid beyond `max_bytes`, whatever Content-Length says."""
        deadline = time.monotonic() + self._policy.document_s
        pieces: list[bytes] = []
        size_bytes = 0
        try:
            while True:
                with self._cut_as_error():
                    piece = self._response.read1(64 << 10, decode_content=False)
                if not piece:
                    return b"".join(pieces)
                size_bytes += len(piece)
                if size_bytes > max_bytes:
                    raise RegistryAnswerInvalid(
                        f"a document is over the cap of {max_bytes} bytes", where=shown(self.url)
                    )
                if time.monotonic() > deadline:
                    raise ConnectionCut("a document arrives too slowly", where=shown(self.url))
                pieces.append(piece)
        finally:
            self.close()

    def finish(self) -> None:
        """Read a short rest so that the connection can be used again, else close it."""
        try:
            # The length of an answer to HEAD is that of another answer.
            if self._is_head or (self.length or 0) <= READ_BYTES:
                self.document(READ_BYTES)
        except MlbundleError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Let the connection go: back to its pool when the body is read, else closed."""
        self._live.discard(self)
        if self._response.closed:
            self._response.release_conn()
        else:
            self._response.close()

    def interrupt(self) -> None:
        """End a read that another thread may be waiting in."""
        with contextlib.suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()

    @contextlib.contextmanager
    def _cut_as_error(self) -> Iterator[None]:
        from urllib3.exceptions import HTTPError, ReadTimeoutError

        try:
            yield
        except ReadTimeoutError as error:
            raise ConnectionCut(
                f"no byte came for {self._policy.stall_s:g} s", where=shown(self.url), hint=_TRY_AGAIN
            ) from error
        except (HTTPError, OSError) as error:
            raise ConnectionCut(
                f"the connection broke off: {words_of(error)}", where=shown(self.url), hint=_TRY_AGAIN
            ) from error


def cause_of(error: BaseException) -> BaseException:
    """Return the error of the standard library that urllib3 has wrapped, once or more, or the error itself."""
    for inner in (error.__cause__, *error.args):
        if isinstance(inner, BaseException):
            return cause_of(inner)
    return error


def words_of(error: BaseException) -> str:
    """Return an error of a connection in words for a user, at most 200 characters."""
    import ssl

    cause = cause_of(error)
    if isinstance(cause, TimeoutError):
        return "timed out"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {getattr(cause, 'verify_message', '') or cause.reason or cause}"[:200]
    return ((isinstance(cause, OSError) and cause.strerror) or str(cause) or type(cause).__name__)[:200]
