"""Answers to `WWW-Authenticate`: Basic (RFC 7617) and the bearer tokens of docker's token specification.

Credentials are looked up under the registry's own name and go nowhere but to the registry and to the token endpoint
that the registry itself named.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from mlbundle.errors import RegistryAnswerInvalid, RegistryDenied
from mlbundle.registry import credentials as stored
from mlbundle.registry.documents import describe, error_codes, parse_object
from mlbundle.registry.messages import Origin, Request, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle.registry.credentials import Credentials
    from mlbundle.registry.messages import Answer
    from mlbundle.registry.transport import Transport

_MAX_TOKEN_ANSWER = 1 << 20
_MAX_TOKEN = 64 << 10
_MAX_CHALLENGE = 16 << 10
_CLIENT_ID = "mlbundle"
# A scheme, or a parameter with its value: possessive, so that no header takes quadratic time.
_PART = re.compile(
    r"""([A-Za-z][A-Za-z0-9_-]*+)(?:\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)("|\Z)|([^\s",]++)))?""", re.DOTALL
)


class Authorizer:
    """Knows what to send as Authorization to one registry; safe to use from several threads."""

    def __init__(self, transport: Transport, host: str, given: Credentials | None = None) -> None:
        self._transport = transport
        self._host = host
        self._given = given
        self._looked_up = given is not None
        self._headers: dict[str, str] = {}
        self._lock = threading.Lock()

    def header(self, scope: str) -> str | None:
        """Return the Authorization header for a scope, if one was obtained."""
        return self._headers.get(scope)

    def obtain(self, answer: Answer, scope: str, stale: str | None) -> bool:
        """Get an Authorization header after a 401 of the registry; returns whether there is a new one to try.

        `stale` is what was refused. Raises RegistryDenied, RegistryAnswerInvalid, RegistryUnavailable.
        """
        challenges = parse_challenges(answer.header("WWW-Authenticate") or "")
        with self._lock:
            if self._headers.get(scope) != stale:
                return True  # another thread was faster
            if "bearer" in challenges:
                self._headers[scope] = self._bearer(challenges["bearer"], scope, answer.url)
            elif "basic" in challenges:
                credentials = self._credentials()
                if credentials is None or not credentials.user:
                    return False
                self._headers[scope] = credentials.basic()
            else:
                return False
            return self._headers[scope] != stale

    def _credentials(self) -> Credentials | None:
        if not self._looked_up:
            self._given, self._looked_up = stored.find(self._host), True
        return self._given

    def _bearer(self, challenge: Mapping[str, str], scope: str, registry_url: str) -> str:
        realm = challenge.get("realm", "")
        if Origin.of(realm).scheme != "https" and not self._transport.plain_http:
            raise RegistryAnswerInvalid(
                "the registry wants credentials sent without encryption",
                where=shown(realm),
                hint="if this network can be trusted, use --plain-http",
            )
        answer = self._transport.send(self._token_request(realm, challenge.get("service"), scope))
        if answer.status != 200:
            codes = error_codes(answer)
            raise RegistryDenied(
                f"{self._host} gives no token (status {answer.status})",
                where=shown(realm),
                context=describe(codes),
                hint=login_hint(self._host),
            )
        document = parse_object(answer.document(_MAX_TOKEN_ANSWER), shown(realm))
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not _is_token(token):
            raise RegistryAnswerInvalid("the token endpoint gave no token", where=shown(realm))
        return f"Bearer {token}"

    def _token_request(self, realm: str, service: str | None, scope: str) -> Request:
        """Return the request for a token: GET with Basic, or the OAuth2 form for identity tokens."""
        credentials = self._credentials()
        fields = [("service", service)] if service else []
        fields += [("scope", part) for part in scope.split()]
        if credentials is not None and credentials.identity_token:
            form = [
                ("grant_type", "refresh_token"),
                ("client_id", _CLIENT_ID),
                ("refresh_token", credentials.identity_token),
                *([("service", service)] if service else []),
                *([("scope", scope)] if scope else []),
            ]
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            return Request("POST", realm, headers, urlencode(form).encode(), repeatable=True)
        query = urlencode(fields)
        url = realm + (("&" if "?" in realm else "?") + query if query else "")
        headers = {"Authorization": credentials.basic()} if credentials and credentials.user else {}
        return Request("GET", url, headers)


def login_hint(host: str) -> str:
    """Return what to do about a registry that says no."""
    return f"`mlbundle login {host}` if this needs an account; else see whether the account may do it"


def parse_challenges(text: str) -> dict[str, dict[str, str]]:
    """Return scheme -> parameters of a WWW-Authenticate header (RFC 9110), names in lower case.

    Of two challenges of one scheme the first counts; what can't be read is passed over.
    """
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for match in _PART.finditer(text[:_MAX_CHALLENGE]):
        name, quoted, end, plain = match.groups()
        if quoted is None and plain is None:
            current = {}
            found.setdefault(name.lower(), current)
        elif plain is not None:
            current.setdefault(name.lower(), plain)
        elif end:
            current.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted))
    return found


def _is_token(text: str) -> bool:
    return len(text) <= _MAX_TOKEN and text.isascii() and text.isprintable() and " " not in text
