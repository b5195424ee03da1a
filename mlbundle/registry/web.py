"""A file at a web address, read at offsets by Range requests (RFC 9110, section 14)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlbundle.errors import (
    BundleCorrupt,
    ReferenceNotFound,
    RegistryAnswerInvalid,
    RegistryDenied,
    RegistryUnavailable,
    UsageError,
)
from mlbundle.registry.ahead import ReadAhead
from mlbundle.registry.messages import ConnectionCut, Origin, Request, shown
from mlbundle.registry.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mlbundle.registry.messages import Answer, Policy

HEAD_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_TRIES = 3


class WebFile:
    """A file at an https address, for reading; safe to use from several threads.

    Its first MiB comes with one request, and is kept: a bundle has its documents there. Who reads on where they
    stopped gets up to 16 MiB with a request. It must stay the same while
    it is open: size, ETag and Last-Modified are compared with every answer.
    """

    def __init__(
        self,
        url: str,
        *,
        user_agent: str,
        plain_http: bool = False,
        ca_file: Path | None = None,
        policy: Policy | None = None,
    ) -> None:
        """Fetch the first MiB.

        Raises UsageError for other addresses than https (http with `plain_http`), ReferenceNotFound, RegistryDenied,
        RegistryUnavailable, also when the server can't serve parts of a file, RegistryAnswerInvalid.
        """
        self.name = shown(url)
        self._url = _checked(url, plain_http)
        self._transport = Transport(
            user_agent=user_agent, plain_http=plain_http, ca_file=ca_file, policy=policy
        )
        self._validators: tuple[str | None, str | None] | None = None
        self.size_bytes = 0
        try:
            self._head = self._fetch_head()
        except BaseException:
            self._transport.close()
            raise
        self._ahead = ReadAhead(self._fetch, self.size_bytes)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes from `offset`; fewer only at the end of the file.

        Raises RegistryAnswerInvalid when the file has changed since it was opened.
        """
        end = min(offset + size_bytes, self.size_bytes)
        if end <= offset:
            return b""
        if end <= len(self._head):
            return self._head[offset:end]
        data = bytearray(end - offset)
        self._ahead.fill(memoryview(data), offset)
        return bytes(data)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset`; raises BundleCorrupt when the file ends before, and as `read_at`."""
        if offset + len(view) > self.size_bytes:
            raise BundleCorrupt("the file ends before it should", where=self.name)
        if offset + len(view) <= len(self._head):
            view[:] = self._head[offset : offset + len(view)]
        else:
            self._ahead.fill(view, offset)

    def _fetch(self, view: memoryview, offset: int) -> None:
        """Fetch what `view` holds; after a cut only the rest is asked for."""
        filled = 0
        for attempt in range(_TRIES):
            try:
                for block in self._blocks(offset + filled, offset + len(view)):
                    view[filled : filled + len(block)] = block
                    filled += len(block)
                return
            except ConnectionCut:
                if attempt == _TRIES - 1:
                    raise
                self._transport.pause(self._transport.policy.pause_s(attempt))

    def _blocks(self, start: int, end: int) -> Iterator[bytes]:
        answer = self._ask(start, end)
        try:
            self._check_same(answer)
            if answer.status != 206:
                raise self._changed()
            first, last, total_bytes = self._range(answer)
            if (first, last + 1, total_bytes) != (start, end, self.size_bytes):
                raise self._changed() if total_bytes != self.size_bytes else self._wrong_part()
            left = end - start
            for block in answer.blocks():
                if len(block) > left:
                    raise self._wrong_part()
                left -= len(block)
                yield block
            if left:
                raise ConnectionCut("the answer ended too early", where=self.name)
        finally:
            answer.close()

    def _fetch_head(self) -> bytes:
        answer = self._ask(0, HEAD_BYTES)
        self._validators = _validators(answer)
        try:
            if answer.status == 200:
                return self._small_whole(answer)
            first, last, self.size_bytes = self._range(answer)
            expected = min(HEAD_BYTES, self.size_bytes)
            if (first, last + 1) != (0, expected):
                raise self._wrong_part()
            data = answer.document(HEAD_BYTES)
        finally:
            answer.close()
        if len(data) != expected:
            raise self._wrong_part()
        return data

    def _small_whole(self, answer: Answer) -> bytes:
        """Take a small file from a server that serves only whole files; others need to be downloaded."""
        if answer.length is None or answer.length > HEAD_BYTES:
            raise RegistryUnavailable(
                "the server can't serve parts of a file",
                where=self.name,
                hint="download the file and name the copy",
            )
        data = answer.document(HEAD_BYTES)
        self.size_bytes = len(data)
        return data

    def _ask(self, start: int, end: int) -> Answer:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        # With a strong validator a server that sees another file answers with the whole of it.
        etag = self._validators[0] if self._validators else None
        if etag is not None and not etag.startswith("W/"):
            headers["If-Range"] = etag
        answer = self._transport.send(Request("GET", self._url, headers))
        if answer.status in {200, 206}:
            return answer
        answer.close()
        if answer.status in {404, 410}:
            raise ReferenceNotFound("there is no such file", where=self.name)
        if answer.status in {401, 403}:
            raise RegistryDenied(
                f"the server does not give the file (status {answer.status})",
                where=self.name,
                hint="download the file by other means and name the copy",
            )
        if answer.status == 416:
            raise self._changed() if self._validators else BundleCorrupt("the file is empty", where=self.name)
        raise RegistryAnswerInvalid(f"the server answers with status {answer.status}", where=self.name)

    def _range(self, answer: Answer) -> tuple[int, int, int]:
        match = _CONTENT_RANGE.fullmatch((answer.header("Content-Range") or "").strip())
        if match is None:
            raise self._wrong_part()
        return int(match[1]), int(match[2]), int(match[3])

    def _check_same(self, answer: Answer) -> None:
        if _validators(answer) != self._validators:
            raise self._changed()

    def _changed(self) -> RegistryAnswerInvalid:
        return RegistryAnswerInvalid("the file changed while it was read", where=self.name, hint="try again")

    def _wrong_part(self) -> RegistryAnswerInvalid:
        return RegistryAnswerInvalid("the server serves another part than was asked for", where=self.name)


def _checked(url: str, plain_http: bool) -> str:
    try:
        origin = Origin.of(url)
    except RegistryAnswerInvalid:
        raise UsageError("this is no web address", where=shown(url), hint="write https://HOST/PATH") from None
    if origin.scheme == "http" and not plain_http:
        raise UsageError(
            "http can be read and changed by everybody on the way",
            where=shown(url),
            hint="use https, or --plain-http in a network that you trust",
        )
    return url.partition("#")[0]


def _validators(answer: Answer) -> tuple[str | None, str | None]:
    return answer.header("ETag"), answer.header("Last-Modified")
