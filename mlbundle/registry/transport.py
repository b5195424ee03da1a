"""One HTTP request, carefully: time limits, retries, redirects under our own rules, nothing decoded, nothing endless.

The rules of redirects: only GET and HEAD follow them, at most 5, never from https to http; `Authorization` is dropped
for good when scheme, host or port change.
"""

from __future__ import annotations

import contextlib
import email.utils
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from mlbundle.errors import Interrupted, MlbundleError, RegistryAnswerInvalid, RegistryUnavailable
from mlbundle.registry.connections import make_pools, proxy_for, tls_context
from mlbundle.registry.messages import IDEMPOTENT, Answer, Origin, Policy, Request, cause_of, shown, words_of

if TYPE_CHECKING:
    from pathlib import Path

    import urllib3

_MAX_REDIRECTS = 5
_MAX_LOCATION = 16 << 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RETRY_STATUS = frozenset({429, 500, 502, 503, 504})


class _Refused(RegistryUnavailable):
    """The other side can't be spoken to at all: trying again would not help."""


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
            if answer.status not in _REDIRECTS or request.method not in IDEMPOTENT:
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
            cause = cause_of(error)
            if isinstance(cause, HTTPException | InvalidHeader) and not isinstance(cause, RemoteDisconnected):
                raise RegistryAnswerInvalid(
                    f"no usable answer: {words_of(cause)}", where=shown(url)
                ) from error
            lasting = isinstance(error, (SSLError, ValueError))
            raise (_Refused if lasting else RegistryUnavailable)(
                f"{urlsplit(url).netloc} does not answer: {words_of(error)}",
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


def _connection_hint(error: BaseException, url: str) -> str:
    from urllib3.exceptions import ProxyError, SSLError

    if isinstance(error, SSLError):
        if "certificate" in str(error).lower():
            return "name the CA of this host by --ca-file or SSL_CERT_FILE"
        return "does it speak https? a registry without TLS needs --plain-http"
    if isinstance(error, ProxyError):
        return "see HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    return f"is {urlsplit(url).hostname} right, and does the network reach it?"
