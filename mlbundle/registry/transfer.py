"""Many blobs at once, and one blob with repair: bytes that are wrong are fetched again, and only those.

Blobs of more than 64 MiB come with the sha256 of every 64 MiB. Each part is checked as it ends, so a damaged download
costs one part and not the whole. The digest of the whole is checked by the sink in any case.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX
from mlbundle.bundle.document import CHUNK_BYTES
from mlbundle.bundle.hashing import DEPTH, Lane
from mlbundle.errors import BundleCorrupt, DigestMismatch, Interrupted
from mlbundle.registry.messages import ConnectionCut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mlbundle.bundle.blobs import BlobReader, BlobSink, PartialBlob
    from mlbundle.registry.client import Progress, RegistryClient
    from mlbundle.registry.transport import Transport

THREADS = 4
_CHUNK_TRIES = 3
_RESUMES = 5
_ENOUGH_BYTES = 1 << 20
_POLL_S = 0.1
_FAREWELL_S = 5.0


@dataclass(frozen=True, slots=True)
class BlobOrder:
    """A blob to move; `chunks` are the sha256 in hex of its parts of 64 MiB, where they are known."""

    hex: str
    size_bytes: int
    chunks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sent:
    """What the repository did not have: the number of blobs and the sum of their sizes."""

    blobs: int
    size_bytes: int


def fetch_blob(
    client: RegistryClient,
    order: BlobOrder,
    sink: BlobSink,
    progress: Progress | None = None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> bool:
    """Bring a blob into `sink`, going on from what an earlier try left; returns False when it was there already.

    Raises DigestMismatch when the registry keeps serving other bytes, BundleCorrupt when the chunks do not fit the
    size, RegistryUnavailable when the connection keeps breaking, and what the client raises.
    """
    if order.chunks and len(order.chunks) != -(-order.size_bytes // chunk_bytes):
        raise BundleCorrupt(
            f"{len(order.chunks)} chunks for a blob of {order.size_bytes} bytes",
            where=f"{client.name}@{PREFIX}{order.hex}",
        )
    fetch = _Fetch(client, order, chunk_bytes, progress)
    try:
        fetched = fetch.into(sink)
    except DigestMismatch:
        # What an earlier try left may be what was wrong; the sink has forgotten it by now.
        if not fetch.resumed:
            raise
        fetched = fetch.into(sink)
    if progress is not None:
        progress(order.size_bytes, order.size_bytes)
    return fetched


class _Fetch:
    """One blob on its way in."""

    _partial: PartialBlob
    _hash: Any
    _lane: Lane

    def __init__(
        self, client: RegistryClient, order: BlobOrder, chunk_bytes: int, progress: Progress | None
    ) -> None:
        self.resumed = False
        self._client = client
        self._hex = order.hex
        self._size_bytes = order.size_bytes
        self._chunks = order.chunks
        self._chunk_bytes = chunk_bytes
        self._progress = progress
        self._failures: dict[int, int] = {}

    def into(self, sink: BlobSink) -> bool:
        """Take the blob in; returns False when it is there already. `resumed` says whether a part of it was."""
        with sink.receive(self._hex, self._size_bytes) as partial:
            if partial is None:
                return False
            self.resumed = partial.received_bytes > 0
            self._partial = partial
            self._hash = self._new_hash()
            with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
                self._lane = Lane(pool)
                self._run()
        return True

    def _run(self) -> None:
        """Receive until the blob is whole; a cut is survived while something arrives in between."""
        cuts = 0
        while self._partial.received_bytes < self._size_bytes:
            before = self._partial.received_bytes
            try:
                self._receive(before)
            except ConnectionCut:
                cuts = 0 if self._partial.received_bytes - before >= _ENOUGH_BYTES else cuts + 1
                if cuts >= _RESUMES:
                    raise
                self._client.transport.pause(self._client.transport.policy.pause_s(cuts))

    def _receive(self, offset: int) -> None:
        """Ask for the rest once; returns early when a part turned out to be wrong."""
        blocks = self._client.read_blob(
            self._hex, offset, self._size_bytes - offset, total_bytes=self._size_bytes
        )
        try:
            for block in blocks:
                self._client.transport.check_halt()
                view = block
                while view:
                    step = self._until_border(len(view))
                    if self._hash is not None:
                        self._lane.do(functools.partial(self._hash.update, view[:step]), step)
                    self._partial.write(view[:step])
                    self._lane.wait(DEPTH)
                    view = view[step:]
                    if not self._part_is_right():
                        return
                if self._progress is not None:
                    self._progress(self._partial.received_bytes, self._size_bytes)
        finally:
            blocks.close()

    def _until_border(self, available: int) -> int:
        if not self._chunks:
            return available
        return min(available, self._chunk_bytes - self._partial.received_bytes % self._chunk_bytes)

    def _part_is_right(self) -> bool:
        """Check a part when it ends here; a wrong one is forgotten, with DigestMismatch after three tries."""
        reached = self._partial.received_bytes
        if not self._chunks or (reached % self._chunk_bytes and reached != self._size_bytes):
            return True
        index = (reached - 1) // self._chunk_bytes
        if self._hash is None:
            # Its beginning is from an earlier try: only the digest of the whole can tell.
            self._hash = self._new_hash()
            return True
        self._lane.wait()
        if self._hash.hexdigest() == self._chunks[index]:
            self._partial.mark()
            self._hash = self._new_hash()
            return True
        self._partial.rollback()
        self._hash = self._new_hash()
        self._failures[index] = self._failures.get(index, 0) + 1
        if self._failures[index] >= _CHUNK_TRIES:
            raise DigestMismatch(
                f"the registry served other bytes {_CHUNK_TRIES} times than the digest says",
                where=f"{self._client.name}@{PREFIX}{self._hex}, byte {index * self._chunk_bytes}",
                hint="what is there is damaged: push it again, or pull from elsewhere",
            )
        return False

    def _new_hash(self) -> Any:
        """Return a hash for the part that begins here; None in the middle of one."""
        if self._chunks and self._partial.received_bytes % self._chunk_bytes == 0:
            return hashlib.sha256()
        return None


def fetch_many(
    client: RegistryClient,
    orders: Sequence[BlobOrder],
    sink: BlobSink,
    progress: Progress | None = None,
    *,
    threads: int = THREADS,
) -> None:
    """Bring blobs into `sink`, several at once; the first error stops the others and is raised.

    `progress` is called in the calling thread with the bytes done and the bytes in all.
    """

    def fetch(order: BlobOrder, tell: Progress) -> None:
        fetch_blob(client, order, sink, tell)

    _at_once(client.transport, orders, fetch, progress, threads)


def upload_many(
    client: RegistryClient,
    orders: Sequence[BlobOrder],
    source: BlobReader,
    progress: Progress | None = None,
    *,
    from_repository: str | None = None,
    threads: int = THREADS,
) -> Sent:
    """Send the blobs that the repository lacks, several at once; the first error stops the others and is raised.

    Returns what was sent. Blobs are taken over from `from_repository` of the same registry where it has them.
    `progress` as for fetch_many.
    """
    sent: list[int] = []

    def send(order: BlobOrder, tell: Progress) -> None:
        if from_repository is not None and client.mount_blob(order.hex, from_repository):
            tell(order.size_bytes, order.size_bytes)
        elif client.upload_blob(order.hex, order.size_bytes, source, tell):
            sent.append(order.size_bytes)

    _at_once(client.transport, orders, send, progress, threads)
    return Sent(len(sent), sum(sent))


class _Crew:
    """Threads that work off a list; what they did is read by the thread that waits."""

    def __init__(self, orders: Sequence[BlobOrder], work: Callable[[BlobOrder, Progress], None]) -> None:
        self.total_bytes = sum(order.size_bytes for order in orders)
        self.failure: BaseException | None = None
        self._work = work
        self._waiting = list(reversed(orders))
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def done_bytes(self) -> int:
        with self._lock:
            return sum(self._done.values())

    def dismiss(self) -> None:
        """Hand out no further work."""
        with self._lock:
            self._waiting.clear()

    def run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                order = self._waiting.pop()
            try:
                self._work(order, self._teller(order.hex))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                with self._lock:
                    # What the others say once they were stopped is no news.
                    if self.failure is None or isinstance(self.failure, Interrupted):
                        self.failure = error
                    self._waiting.clear()

    def _teller(self, hexadecimal: str) -> Progress:
        def tell(done_bytes: int, _total_bytes: int) -> None:
            with self._lock:
                self._done[hexadecimal] = done_bytes

        return tell


def _at_once(
    transport: Transport,
    orders: Sequence[BlobOrder],
    work: Callable[[BlobOrder, Progress], None],
    progress: Progress | None,
    threads: int,
) -> None:
    unique = list({order.hex: order for order in orders}.values())
    crew = _Crew(unique, work)
    team = [threading.Thread(target=crew.run, daemon=True) for _ in range(min(threads, len(unique)))]
    try:
        for member in team:
            member.start()
        while any(member.is_alive() for member in team) and crew.failure is None:
            for member in team:
                member.join(_POLL_S / len(team))
            if progress is not None:
                progress(crew.done_bytes(), crew.total_bytes)
    finally:
        crew.dismiss()
        _send_home(transport, team)
    if crew.failure is not None:
        raise crew.failure
    if progress is not None:
        progress(crew.total_bytes, crew.total_bytes)


def _send_home(transport: Transport, team: Sequence[threading.Thread]) -> None:
    """Stop the threads that still work; those that hang in a connection are not waited for long."""
    if any(member.is_alive() for member in team):
        transport.halt()
        for member in team:
            if member.ident is not None:
                member.join(_FAREWELL_S)
    if not any(member.is_alive() for member in team):
        transport.resume()
