"""One HTTP request, carefully: time limits, retries, redirects under our own rules, nothing decoded, nothing endless.

The rules of redirects: only GET and HEAD follow them, at most 5, never from https to http; `Authorization` is dropped
for good when scheme, host or port change.
"""

from __future__ import annotations

import contextlib
import email.utils
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from mlbundle.errors import Interrupted, MlbundleError, RegistryAnswerInvalid, RegistryUnavailable
from mlbundle.registry.connections import make_pools, proxy_for, tls_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import urllib3

MAX_DOCUMENT_BYTES = 4 << 20
READ_BYTES = 1 << 20
_MAX_REDIRECTS = 5
_MAX_LOCATION = 16 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RETRY_STATUS = frozenset({429, 500, 502, 503, 504})
_IDEMPOTENT = frozenset({"GET", "HEAD"})


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


class _Refused(RegistryUnavailable):
    """The other side can't be spoken to at all: trying again would not help."""


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
        return self.method in _IDEMPOTENT if self.repeatable is None else self.repeatable


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
                f"the connection broke off: {_words(error)}", where=shown(self.url), hint=_TRY_AGAIN
            ) from error


_TRY_AGAIN = "try again: what has arrived is kept"


class Transport:
    """Sends requests; safe to use from several threads."""

    def __init__(
        self,
        *,
        user_agent: str,
        plain_http: bool = False,
        ca_file: Path | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.plain_http = plain_http
        self.policy = policy or Policy()
        self._user_agent = user_agent
        self._ca_file = ca_file
        self._pools: dict[str | None, urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._halted = threading.Event()
        self._live: set[Answer] = set()

    def close(self) -> None:
        """Close all connections."""
        self.halt()
        with self._lock:
            for pools in self._pools.values():
                pools.clear()
            self._pools.clear()

    def halt(self) -> None:
        """Make every waiting and every later request end with Interrupted, until `resume`."""
        self._halted.set()
        for answer in list(self._live):
            answer.interrupt()

    def resume(self) -> None:
        """Undo `halt`."""
        self._halted.clear()

    def check_halt(self) -> None:
        """Raise Interrupted after `halt`."""
        if self._halted.is_set():
            raise Interrupted("stopped")

    def pause(self, seconds: float) -> None:
        """Wait, unless `halt` was or is called; then raises Interrupted."""
        self._halted.wait(seconds)
        self.check_halt()

    def send(self, request: Request) -> Answer:
        """Return the answer, after retries and redirects; the status may still say no.

        Raises RegistryUnavailable when nothing useful answers, RegistryAnswerInvalid for forbidden redirects and
        encodings.
        """
        url, headers = request.url, dict(request.headers)
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._persist(request, url, headers)
            if answer.status not in _REDIRECTS or request.method not in _IDEMPOTENT:
                return answer
            answer.finish()
            target = self._redirect_target(answer)
            if Origin.of(target) != Origin.of(url):
                headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            url = target
        raise RegistryAnswerInvalid(
            f"more than {_MAX_REDIRECTS} redirects", where=shown(request.url), hint="is the address right?"
        )

    def follow(self, base: str, location: str | None) -> str:
        """Return the address that a Location names, relative or not.

        Raises RegistryAnswerInvalid when there is none, when it can't be used, or when it leads from https to http.
        """
        if (
            not location
            or len(location) > _MAX_LOCATION
            or not location.isascii()
            or not location.isprintable()
        ):
            raise RegistryAnswerInvalid("an answer without a usable Location", where=shown(base))
        try:
            target = urljoin(base, location)
        except ValueError:
            raise RegistryAnswerInvalid("an answer without a usable Location", where=shown(base)) from None
        scheme = Origin.of(target).scheme
        if scheme == "http" and (Origin.of(base).scheme == "https" or not self.plain_http):
            raise RegistryAnswerInvalid(
                "led from https to http, which everybody on the way can read and change", where=shown(target)
            )
        return target

    def _redirect_target(self, answer: Answer) -> str:
        return self.follow(answer.url, answer.header("Location"))

    def _persist(self, request: Request, url: str, headers: dict[str, str]) -> Answer:
        """Send until it is answered by something else than an error that may pass."""
        failure: MlbundleError | None = None
        tries = self.policy.tries if request.may_repeat else 1
        for attempt in range(tries):
            last = attempt == tries - 1
            pause_s = self.policy.pause_s(attempt)
            try:
                answer = self._once(request, url, headers)
            except _Refused:
                raise
            except RegistryUnavailable as error:
                failure = error
            else:
                if answer.status not in _RETRY_STATUS or not request.may_repeat:
                    return answer
                failure = _unavailable(answer, url)
                pause_s = max(pause_s, self._retry_after_s(answer))
                answer.finish()
            if not last:
                self.pause(pause_s)
        assert failure is not None
        raise failure

    def _retry_after_s(self, answer: Answer) -> float:
        """Return what Retry-After asks for, seconds or a date, within the cap."""
        text = (answer.header("Retry-After") or "").strip()
        seconds = 0.0
        if text.isascii() and text.isdigit():
            seconds = float(text[:9])
        elif text:
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        return max(0.0, min(seconds, self.policy.max_retry_after_s))

    def _once(self, request: Request, url: str, headers: dict[str, str]) -> Answer:
        from http.client import HTTPException, RemoteDisconnected

        from urllib3.exceptions import HTTPError, InvalidHeader, SSLError

        self.check_halt()
        try:
            response = self._open(request, url, headers)
        except (HTTPError, OSError, HTTPException, ValueError) as error:
            self.check_halt()
            cause = _cause(error)
            if isinstance(cause, HTTPException | InvalidHeader) and not isinstance(cause, RemoteDisconnected):
                raise RegistryAnswerInvalid(f"no usable answer: {_words(cause)}", where=shown(url)) from error
            lasting = isinstance(error, (SSLError, ValueError))
            raise (_Refused if lasting else RegistryUnavailable)(
                f"{urlsplit(url).netloc} does not answer: {_words(error)}",
                where=shown(url),
                hint=_connection_hint(error, url),
            ) from error
        answer = Answer(response, request, url=url, policy=self.policy, live=self._live)
        encoding = (answer.header("Content-Encoding") or "identity").strip().lower()
        if encoding != "identity":
            answer.close()
            raise RegistryAnswerInvalid(
                f"the answer is encoded as {ascii(encoding)[:40]}, which was not asked for", where=shown(url)
            )
        if self._halted.is_set():
            answer.close()
            self.check_halt()
        return answer

    def _open(self, request: Request, url: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
        import urllib3

        sent = {"User-Agent": self._user_agent, "Accept-Encoding": "identity", **headers}
        body: Any = request.body
        if callable(body):
            sent["Content-Length"] = str(request.body_bytes)
            body = body()
        return self._pools_for(url).request(
            request.method,
            url,
            body=body,
            headers=sent,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=self.policy.connect_s, read=self.policy.stall_s),
        )

    def _pools_for(self, url: str) -> urllib3.PoolManager:
        origin = Origin.of(url)
        proxy = proxy_for(origin.scheme, origin.host, origin.port)
        with self._lock:
            pools = self._pools.get(proxy)
            if pools is None:
                pools = make_pools(proxy, tls_context(self._ca_file), self.policy.stall_s)
                self._pools[proxy] = pools
            return pools


def _unavailable(answer: Answer, url: str) -> RegistryUnavailable:
    what = "asks to slow down" if answer.status == 429 else "only answers with errors"
    return RegistryUnavailable(
        f"{urlsplit(url).netloc} {what} (status {answer.status})", where=shown(url), hint="try again later"
    )


def _cause(error: BaseException) -> BaseException:
    """Return the error of the standard library that urllib3 has wrapped, once or more, or the error itself."""
    for inner in (error.__cause__, *error.args):
        if isinstance(inner, BaseException):
            return _cause(inner)
    return error


def _words(error: BaseException) -> str:
    import ssl

    cause = _cause(error)
    if isinstance(cause, TimeoutError):
        return "timed out"
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {getattr(cause, 'verify_message', '') or cause.reason or cause}"[:200]
    return ((isinstance(cause, OSError) and cause.strerror) or str(cause) or type(cause).__name__)[:200]


def _connection_hint(error: BaseException, url: str) -> str:
    from urllib3.exceptions import ProxyError, SSLError

    if isinstance(error, SSLError):
        if "certificate" in str(error).lower():
            return "name the CA of this host by --ca-file or SSL_CERT_FILE"
        return "does it speak https? a registry without TLS needs --plain-http"
    if isinstance(error, ProxyError):
        return "see HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    return f"is {urlsplit(url).hostname} right, and does the network reach it?"
