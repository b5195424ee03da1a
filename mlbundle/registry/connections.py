"""Connection pools: TLS as the system trusts, proxies as the environment says, a stall limit in both directions."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mlbundle.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import urllib3

_CONNECTIONS_PER_HOST = 8


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that trusts what the system trusts, SSL_CERT_FILE included, and the CAs in `ca_file`.

    Raises UsageError when the file can't be used.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            raise UsageError(
                f"can't use the CA file: {error.strerror or error}",
                where=str(ca_file),
                hint="name a file with the certificates of the CA in PEM form",
            ) from error
    return context


def proxy_for(scheme: str, host: str, port: int | None) -> str | None:
    """Return the proxy that HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY say for a host, or None."""
    from urllib.request import getproxies_environment
    from urllib.request import proxy_bypass_environment as bypassed  # type: ignore[attr-defined]

    proxies = getproxies_environment()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy:
        return None
    name = f"{host}:{port}" if port else host
    if bypassed(name, proxies):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def make_pools(proxy: str | None, context: ssl.SSLContext, stall_s: float) -> urllib3.PoolManager:
    """Return pools that go through `proxy` (None: straight); sending gives up after `stall_s` without progress."""
    import urllib3

    settings: dict[str, Any] = {"ssl_context": context, "maxsize": _CONNECTIONS_PER_HOST}
    if proxy is None:
        pools = urllib3.PoolManager(**settings)
    else:
        try:
            pools = urllib3.ProxyManager(proxy, proxy_headers=_proxy_headers(proxy), **settings)
        except (ValueError, urllib3.exceptions.HTTPError) as error:
            raise UsageError(
                f"the proxy of the environment can't be used: {type(error).__name__}",
                hint="see HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
            ) from error
    pools.pool_classes_by_scheme = _pool_classes(stall_s)
    return pools


def _proxy_headers(proxy: str) -> dict[str, str]:
    from urllib.parse import unquote

    import urllib3

    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return dict(urllib3.make_headers(proxy_basic_auth=login))


def _pool_classes(stall_s: float) -> dict[str, Any]:
    """Return pools whose sockets, once connected, may stall as long when sending as when reading.

    urllib3 keeps the short time limit for connecting on the socket until the whole body is sent.
    """
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Plain(HTTPConnection):
        def endheaders(self, *arguments: Any, **settings: Any) -> None:
            super().endheaders(*arguments, **settings)
            if self.sock is not None:
                self.sock.settimeout(stall_s)

    class Secure(HTTPSConnection):
        def endheaders(self, *arguments: Any, **settings: Any) -> None:
            super().endheaders(*arguments, **settings)
            if self.sock is not None:
                self.sock.settimeout(stall_s)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}
