"""Sending a blob: in pieces with resume where the registry can, else in one piece (distribution spec v1.1).

POST begins an upload and every answer names the address of the next request, which may be on another host; credentials
follow only to the registry itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.bundle.digests import PREFIX
from mlbundle.errors import DigestMismatch, RegistryAnswerInvalid, RegistryUnavailable
from mlbundle.registry.documents import error_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.registry.client import Progress, RegistryClient
    from mlbundle.registry.messages import Answer

SMALL_BYTES = 4 << 20
"""Blobs up to this size go in one piece: it costs less than to ask where to go on."""

CHUNK_BYTES = 32 << 20
_BLOCK_BYTES = 1 << 20
_MAX_CHUNK_BYTES = 1 << 30
_TRIES = 5
_OCTETS = "application/octet-stream"
_NO_CHUNKS = frozenset({400, 404, 405, 411, 413, 415, 416, 501})
_RETRY = frozenset({404, 408, 429, 500, 502, 503, 504})
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,19})", re.ASCII)
_MONOLITHIC = re.compile(r"(?:ghcr\.io|gcr\.io|.*\.gcr\.io|.*\.pkg\.dev|.*\.amazonaws\.com|public\.ecr\.aws)")


class _NoChunks(Exception):
    """The registry takes no pieces."""


class _TryAgain(Exception):
    """The upload is lost; another one may do. `failure` is what to say when none does."""

    def __init__(self, failure: RegistryUnavailable) -> None:
        super().__init__()
        self.failure = failure


@dataclass(slots=True)
class _Blob:
    """A blob on its way out."""

    client: RegistryClient
    hex: str
    size_bytes: int
    source: BlobReader
    progress: Progress | None

    def body(self, start: int, end: int) -> Callable[[], Iterator[memoryview]]:
        """Return what yields the bytes from `start` to `end`, in one buffer that is used over and over."""

        def pieces() -> Iterator[memoryview]:
            buffer = memoryview(bytearray(min(_BLOCK_BYTES, end - start)))
            offset = start
            while offset < end:
                self.client.transport.check_halt()
                view = buffer[: min(len(buffer), end - offset)]
                self.source.read_into(self.hex, view, offset)
                yield view
                offset += len(view)
                self.tell(offset)

        return pieces

    def tell(self, done_bytes: int) -> None:
        if self.progress is not None:
            self.progress(done_bytes, self.size_bytes)

    @property
    def where(self) -> str:
        return f"{self.client.name}@{PREFIX}{self.hex}"


def wants_monolithic(host: str) -> bool:
    """Return whether a registry is known to take blobs in one piece only."""
    return _MONOLITHIC.fullmatch(host.partition(":")[0]) is not None


def send_blob(
    client: RegistryClient, hexadecimal: str, size_bytes: int, source: BlobReader, progress: Progress | None
) -> bool:
    """Send a blob unless it is there; see RegistryClient.upload_blob."""
    blob = _Blob(client, hexadecimal, size_bytes, source, progress)
    there = client.blob_size(hexadecimal)
    if there is not None:
        if there != size_bytes:
            raise RegistryAnswerInvalid(
                f"the registry has {there} bytes for a blob of {size_bytes}", where=blob.where
            )
        blob.tell(size_bytes)
        return False
    for attempt in range(_TRIES):
        try:
            _send(blob)
        except _NoChunks:
            client.monolithic = True
        except _TryAgain as lost:
            if attempt == _TRIES - 1:
                raise lost.failure from lost
            client.transport.pause(client.transport.policy.pause_s(attempt))
        else:
            return True
    raise RegistryUnavailable("the registry loses the upload again and again", where=blob.where)


def _send(blob: _Blob) -> None:
    location, least = _begin(blob)
    if blob.client.monolithic or blob.size_bytes <= SMALL_BYTES:
        _finish(blob, location, 0)
        return
    chunk_bytes = max(CHUNK_BYTES, least)
    offset, cuts = 0, 0
    while offset < blob.size_bytes:
        end = min(offset + chunk_bytes, blob.size_bytes)
        try:
            location, reached = _patch(blob, location, offset, end)
        except _TryAgain as lost:
            cuts += 1
            if cuts >= _TRIES:
                raise
            blob.client.transport.pause(blob.client.transport.policy.pause_s(cuts - 1))
            location, reached = _ask(blob, location, lost)
        else:
            cuts = 0 if reached > offset else cuts + 1
            if cuts >= _TRIES:
                raise RegistryAnswerInvalid("the upload does not go on", where=blob.where)
        offset = reached
    _finish(blob, location, blob.size_bytes)


def _begin(blob: _Blob) -> tuple[str, int]:
    """Begin an upload; return its address and the least size of a piece."""
    url = blob.client.uploads_url()
    # An upload that is begun twice costs nothing: the registry forgets the other one.
    answer = blob.client.request("POST", url, push=True, repeatable=True)
    if answer.status != 202:
        raise blob.client.refused(answer, "the registry does not begin an upload")
    answer.finish()
    least = answer.header("OCI-Chunk-Min-Length") or "0"
    if not (least.isascii() and least.isdigit() and len(least) < 12 and int(least) <= _MAX_CHUNK_BYTES):
        raise RegistryAnswerInvalid(f"OCI-Chunk-Min-Length is {ascii(least)[:40]}", where=blob.where)
    return _next(blob, answer), int(least)


def _patch(blob: _Blob, location: str, start: int, end: int) -> tuple[str, int]:
    """Send one piece; return the next address and how far the registry is."""
    headers = {"Content-Type": _OCTETS, "Content-Range": f"{start}-{end - 1}"}
    answer = _put_body(blob, "PATCH", location, headers, start=start, end=end)
    if answer.status in {202, 204}:
        answer.finish()
        reached = _reached(blob, answer, end)
        if reached > end:
            raise RegistryAnswerInvalid("the registry says that it has more than was sent", where=blob.where)
        return _next(blob, answer), reached
    if start == 0 and answer.status in _NO_CHUNKS:
        answer.finish()
        raise _NoChunks
    if answer.status in _RETRY or answer.status == 416:
        raise _lost(blob, answer)
    raise blob.client.refused(answer, "the registry does not take a piece of a blob")


def _ask(blob: _Blob, location: str, lost: _TryAgain) -> tuple[str, int]:
    """Return where an upload goes on after a cut; raises `lost` when the registry has forgotten it."""
    answer = blob.client.request("GET", location, push=True)
    answer.finish()
    if answer.status not in {200, 202, 204}:
        raise lost
    following = _next(blob, answer) if answer.header("Location") else location
    return following, _reached(blob, answer, None)


def _reached(blob: _Blob, answer: Answer, default: int | None) -> int:
    """Return how many bytes the registry has by its Range header: `0-99` are 100.

    An upload without any bytes is `0-0` in some registries, which can't be told from one byte: then it begins anew.
    """
    text = answer.header("Range")
    if text is None and default is not None:
        return default
    match = _RANGE.fullmatch((text or "").strip())
    if match is None or int(match[1]) >= blob.size_bytes:
        raise RegistryAnswerInvalid(f"an upload is said to be at {ascii(text)[:60]}", where=blob.where)
    if default is None and int(match[1]) == 0:
        raise _TryAgain(RegistryUnavailable("the registry lost the upload", where=blob.where))
    return int(match[1]) + 1


def _finish(blob: _Blob, location: str, start: int) -> None:
    """Close the upload with what is missing from `start` on, and the digest."""
    url = f"{location}{'&' if '?' in location else '?'}digest={PREFIX.replace(':', '%3A')}{blob.hex}"
    answer = _put_body(blob, "PUT", url, {"Content-Type": _OCTETS}, start=start, end=blob.size_bytes)
    if answer.status == 201:
        said = answer.header("Docker-Content-Digest")
        answer.finish()
        if said is not None and said != PREFIX + blob.hex:
            raise DigestMismatch(f"the registry stored {ascii(said)[:80]}", where=blob.where)
        blob.tell(blob.size_bytes)
        return
    if answer.status in _RETRY:
        raise _lost(blob, answer)
    codes = error_codes(answer)
    if any(code in {"DIGEST_INVALID", "SIZE_INVALID"} for code, _ in codes):
        raise DigestMismatch(
            "the registry found other bytes than the digest says",
            where=blob.source.where(blob.hex),
            hint="`mlbundle verify` says whether the source is damaged",
        )
    raise blob.client.refused(answer, "the registry does not take a blob", codes)


def _put_body(blob: _Blob, method: str, url: str, headers: dict[str, str], *, start: int, end: int) -> Answer:
    try:
        return blob.client.request(
            method,
            url,
            headers=headers,
            body=blob.body(start, end) if end > start else b"",
            body_bytes=end - start,
            push=True,
            repeatable=False,
        )
    except RegistryUnavailable as error:
        raise _TryAgain(error) from error


def _next(blob: _Blob, answer: Answer) -> str:
    return blob.client.transport.follow(answer.url, answer.header("Location"))


def _lost(blob: _Blob, answer: Answer) -> _TryAgain:
    status = answer.status
    answer.finish()
    return _TryAgain(
        RegistryUnavailable(
            f"the registry broke off an upload (status {status})", where=blob.where, hint="try again later"
        )
    )
