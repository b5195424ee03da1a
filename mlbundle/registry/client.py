"""A client of one repository of an OCI registry (distribution specification v1.1).

It knows manifests, blobs, tags and referrers, and nothing of what bundles put into them.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from mlbundle.bundle.digests import PREFIX, digest_of, is_digest, is_hex
from mlbundle.bundle.oci import INDEX_TYPE, MANIFEST_TYPE
from mlbundle.errors import (
    DigestMismatch,
    MlbundleError,
    ReferenceNotFound,
    RegistryAnswerInvalid,
    RegistryDenied,
    RegistryUnavailable,
)
from mlbundle.registry import referrers as fallback
from mlbundle.registry import upload
from mlbundle.registry.auth import Authorizer, login_hint
from mlbundle.registry.documents import describe, error_codes, next_page, parse_object
from mlbundle.registry.messages import Answer, ConnectionCut, Origin, Request, shown
from mlbundle.registry.reference import RegistryReference
from mlbundle.registry.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from mlbundle.bundle.blobs import BlobReader
    from mlbundle.registry.credentials import Credentials
    from mlbundle.registry.messages import Policy

    Progress = Callable[[int, int], None]

MANIFEST_TYPES = (MANIFEST_TYPE, INDEX_TYPE)
DOCKER_INDEX_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
ALL_MANIFEST_TYPES = (*MANIFEST_TYPES, DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE)
"""What may stand under a tag that others wrote."""
_MAX_PAGES = 200
_MAX_TAGS = 100_000
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as it came: `digest` was computed from the bytes."""

    media_type: str
    digest: str
    data: bytes


class RegistryClient:
    """One repository of a registry; a context manager; safe to use from several threads.

    `host` is the name of the registry (`docker.io`, `ghcr.io`, `localhost:5000`), `credentials` are instead of those
    that docker's settings hold; with `to_push` the right to push is asked for from the first request on, so that
    nobody finds out late that it lacks. Every method raises RegistryUnavailable when nothing useful answers,
    RegistryDenied when the registry says no, RegistryAnswerInvalid when it answers what it may not.
    """

    def __init__(
        self,
        host: str,
        repository: str,
        *,
        user_agent: str,
        plain_http: bool = False,
        ca_file: Path | None = None,
        credentials: Credentials | None = None,
        policy: Policy | None = None,
        to_push: bool = False,
    ) -> None:
        self.reference = RegistryReference(host, repository)
        self.transport = Transport(
            user_agent=user_agent, plain_http=plain_http, ca_file=ca_file, policy=policy
        )
        scheme = "http" if plain_http else "https"
        self._base = f"{scheme}://{self.reference.api_host}/v2/"
        self._origin = Origin.of(self._base)
        self._auth = Authorizer(self.transport, host, credentials)
        self._fallback_lock = threading.Lock()
        self._to_push = to_push
        self.monolithic = upload.wants_monolithic(self.reference.api_host)

    @property
    def name(self) -> str:
        """How errors and tables call the repository."""
        return str(self.reference)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self.transport.close()

    # Manifests

    def get_manifest(self, reference: str, accept: Sequence[str] = MANIFEST_TYPES) -> Manifest:
        """Return the manifest that a tag or a digest names, at most 4 MiB.

        Raises ReferenceNotFound, and DigestMismatch when the bytes do not have the digest that was asked for, or
        another one than the registry says.
        """
        answer = self._manifest(reference, accept, "GET")
        media_type = (answer.header("Content-Type") or "").partition(";")[0].strip().lower()
        said = answer.header("Docker-Content-Digest")
        data = answer.document()
        digest = digest_of(data)
        if is_digest(reference) and digest != reference:
            raise DigestMismatch(
                f"the manifest has the digest {digest}", where=self._where(reference), hint=_DO_NOT_USE
            )
        if said is not None and said.startswith(PREFIX) and said != digest:
            raise DigestMismatch(
                f"the registry calls the manifest {ascii(said)[:80]} but it has the digest {digest}",
                where=self._where(reference),
                hint=_DO_NOT_USE,
            )
        return Manifest(media_type, digest, data)

    def head_manifest(self, reference: str, accept: Sequence[str] = MANIFEST_TYPES) -> str | None:
        """Return the digest of the manifest that a tag or digest names, as the registry says it, or None."""
        try:
            answer = self._manifest(reference, accept, "HEAD")
        except ReferenceNotFound:
            return None
        answer.finish()
        said = answer.header("Docker-Content-Digest")
        if said is None:
            return self.get_manifest(reference, accept).digest
        if not is_digest(said) or (is_digest(reference) and said != reference):
            raise RegistryAnswerInvalid(
                f"the registry calls the manifest {ascii(said)[:80]}", where=self._where(reference)
            )
        return said

    def put_manifest(self, reference: str, media_type: str, data: bytes) -> str:
        """Store a manifest under a tag or its digest; returns its digest."""
        return self._put_manifest(reference, media_type, data)[0]

    def _put_manifest(self, reference: str, media_type: str, data: bytes) -> tuple[str, bool]:
        """Return the digest, and whether the registry has noted the manifest's subject."""
        digest = digest_of(data)
        answer = self.request(
            "PUT",
            self._url(f"manifests/{reference}"),
            headers={"Content-Type": media_type},
            body=data,
            push=True,
            repeatable=True,
        )
        if answer.status not in {201, 202}:
            raise self.refused(answer, f"the registry does not take the manifest {reference}")
        said = answer.header("Docker-Content-Digest")
        noted = answer.header("OCI-Subject") is not None
        answer.finish()
        if said is not None and said.startswith(PREFIX) and said != digest:
            raise DigestMismatch(
                f"the registry stored the manifest as {ascii(said)[:80]}", where=self._where(digest)
            )
        return digest, noted

    def _manifest(self, reference: str, accept: Sequence[str], method: str) -> Answer:
        headers = {"Accept": ", ".join(accept)}
        answer = self.request(method, self._url(f"manifests/{reference}"), headers=headers)
        if answer.status == 404:
            answer.finish()
            raise ReferenceNotFound(
                f"the registry has no manifest {reference} in {self.reference.repository}",
                where=self._where(reference),
                hint="see the tags of the repository; a private one needs `mlbundle login`",
            )
        if answer.status != 200:
            raise self.refused(answer, f"the registry does not give the manifest {reference}")
        return answer

    # Blobs

    def blob_size(self, hexadecimal: str) -> int | None:
        """Return the size in bytes of a blob, or None when the repository does not hold it."""
        answer = self.request("HEAD", self.blob_url(hexadecimal))
        size_bytes = answer.length
        answer.finish()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self.refused(answer, f"the registry does not say whether it has the blob {hexadecimal}")
        if size_bytes is None:
            raise RegistryAnswerInvalid("a blob without a size", where=self._where(PREFIX + hexadecimal))
        return size_bytes

    def read_blob(
        self, hexadecimal: str, offset: int, size_bytes: int, *, total_bytes: int | None = None
    ) -> Generator[memoryview, None, None]:
        """Yield exactly `size_bytes` bytes of a blob from `offset`, in blocks of at most 256 KiB.

        `total_bytes`, where known, is what the registry must say the blob's size is. Nothing is checked against the
        digest. Raises ConnectionCut (a RegistryUnavailable) when the answer breaks off: what was yielded is good to
        go on from.
        """
        if size_bytes == 0:
            return
        end = offset + size_bytes
        whole = offset == 0 and end == total_bytes
        headers = {} if whole else {"Range": f"bytes={offset}-{end - 1}"}
        answer = self.request("GET", self.blob_url(hexadecimal), headers=headers)
        try:
            skip = self._skip(answer, hexadecimal, offset, end, total_bytes)
            yield from self._exactly(answer, hexadecimal, skip, size_bytes)
        finally:
            answer.close()

    def _skip(self, answer: Answer, hexadecimal: str, offset: int, end: int, total_bytes: int | None) -> int:
        """Check the head of an answer with a part of a blob; return how many bytes stand before that part."""
        where = self._where(PREFIX + hexadecimal)
        if answer.status == 206:
            text = answer.header("Content-Range") or ""
            match = _CONTENT_RANGE.fullmatch(text.strip())
            given = match is not None and (int(match[1]), int(match[2]) + 1) == (offset, end)
            if match is None or not given or (total_bytes and match[3] not in {"*", str(total_bytes)}):
                raise RegistryAnswerInvalid(
                    f"asked for bytes {offset}-{end - 1} but the answer is {ascii(text)[:60]}", where=where
                )
            if answer.length not in {None, end - offset}:
                raise RegistryAnswerInvalid("Content-Length and Content-Range disagree", where=where)
            return 0
        if answer.status == 200:
            length = answer.length
            if length is not None and (length < end or (total_bytes is not None and length != total_bytes)):
                raise RegistryAnswerInvalid(
                    f"the blob has {length} bytes there, not {total_bytes or end}", where=where
                )
            return offset
        if answer.status == 404:
            raise RegistryAnswerInvalid(
                "the registry does not have a blob that it should have", where=where, hint="push it again"
            )
        if answer.status == 416:
            raise RegistryAnswerInvalid("the blob is shorter there than it should be", where=where)
        raise self.refused(answer, "the registry does not give a blob")

    def _exactly(self, answer: Answer, hexadecimal: str, skip: int, size_bytes: int) -> Iterator[memoryview]:
        for block in answer.blocks():
            view = memoryview(block)
            if skip:
                dropped = min(skip, len(view))
                view, skip = view[dropped:], skip - dropped
            view = view[:size_bytes]
            if view:
                size_bytes -= len(view)
                yield view
            if size_bytes == 0:
                return
        raise ConnectionCut("the answer ended too early", where=self._where(PREFIX + hexadecimal))

    def mount_blob(self, hexadecimal: str, from_repository: str) -> bool:
        """Let this repository have a blob of another one of the same registry; returns whether that was done."""
        query = urlencode({"mount": PREFIX + hexadecimal, "from": from_repository})
        answer = self.request(
            "POST", self._url(f"blobs/uploads/?{query}"), push=True, also_pull=from_repository
        )
        answer.finish()
        # 202 begins an upload instead; the registry forgets it in time.
        return answer.status == 201

    def upload_blob(
        self, hexadecimal: str, size_bytes: int, source: BlobReader, progress: Progress | None = None
    ) -> bool:
        """Send a blob from `source` unless the repository has it; returns whether it was sent.

        Large blobs go in pieces, and go on after a cut from where the registry is. `progress` is told the bytes done
        and the bytes in all. Raises DigestMismatch when the registry finds other bytes than the digest says.
        """
        return upload.send_blob(self, hexadecimal, size_bytes, source, progress)

    # Tags and referrers

    def tags(self) -> tuple[str, ...]:
        """Return the tags of the repository as the registry orders them; none when there is no repository."""
        found: list[str] = []
        for page in self._pages(self._url("tags/list?n=1000")):
            names = page.get("tags") or []
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise RegistryAnswerInvalid("a list of tags is expected", where=self.name)
            found += names
            if len(found) > _MAX_TAGS:
                raise RegistryAnswerInvalid(f"more than {_MAX_TAGS} tags", where=self.name)
        return tuple(found)

    def referrers(self, digest: str) -> tuple[dict[str, Any], ...]:
        """Return the descriptors of the manifests whose subject is `digest`.

        By the referrers API; where the registry has none (404), by the tag `sha256-<hex>` (distribution spec,
        "Referrers Tag Schema"). Each has at least mediaType, digest (sha256) and size.
        """
        pages = list(self._pages(self._url(f"referrers/{digest}"), accept=INDEX_TYPE))
        if not pages:
            return fallback.read_tag(self, digest)
        return tuple(entry for page in pages for entry in fallback.descriptors(page, self._where(digest)))

    def put_referrer(self, media_type: str, data: bytes, subject_digest: str) -> str:
        """Store a manifest that has a `subject`; returns its digest.

        Where the registry does not say that it has noted the subject, the index under the tag `sha256-<hex>` gets an
        entry; what others wrote there stays.
        """
        digest = digest_of(data)
        _, noted = self._put_manifest(digest, media_type, data)
        if not noted:
            with self._fallback_lock:
                fallback.add_to_tag(self, subject_digest, fallback.descriptor_of(media_type, data, self.name))
        return digest

    def _pages(self, url: str, accept: str = "application/json") -> Iterator[dict[str, Any]]:
        """Yield the pages of a list; none when the registry answers 404 to the first."""
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            answer = self.request("GET", url, headers={"Accept": accept})
            if answer.status == 404 and not seen:
                answer.finish()
                return
            if answer.status != 200:
                raise self.refused(answer, "the registry does not give a list")
            following = next_page(answer)
            yield parse_object(answer.document(), shown(url))
            seen.add(url)
            if following is None:
                return
            url = self.transport.follow(url, following)
            if url in seen or Origin.of(url) != self._origin:
                break
        raise RegistryAnswerInvalid("a list without an end", where=shown(url))

    # Requests

    def check(self) -> bool:
        """Ask whether the credentials are right; returns False when the registry did not want any.

        Raises RegistryDenied when they are wrong, ReferenceNotFound when there is no registry at this address.
        """
        answer = self._authorized(Request("GET", self._base, {}), "")
        asked = self._auth.header("") is not None
        if answer.status in {401, 403}:
            raise self.refused(answer, "the registry does not accept the credentials")
        if answer.status != 200:
            answer.finish()
            raise ReferenceNotFound(
                f"{self.reference.host} is no registry (status {answer.status})", where=shown(self._base)
            )
        answer.finish()
        return asked

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        body: bytes | Callable[[], Iterable[memoryview]] | None = None,
        body_bytes: int = 0,
        push: bool = False,
        also_pull: str | None = None,
        repeatable: bool | None = None,
    ) -> Answer:
        """Return the answer to a request of the distribution API, after authorization when it is asked for.

        Credentials go along only to the registry itself. Raises RegistryDenied when they do not help.
        """
        push = push or self._to_push
        scope = f"repository:{self.reference.repository}:{'pull,push' if push else 'pull'}"
        if also_pull is not None:
            scope += f" repository:{also_pull}:pull"
        answer = self._authorized(Request(method, url, headers or {}, body, body_bytes, repeatable), scope)
        if answer.status in {401, 403}:
            raise self.refused(answer, f"the registry does not let you {'push' if push else 'pull'}")
        return answer

    def _authorized(self, request: Request, scope: str) -> Answer:
        ours = Origin.of(request.url) == self._origin
        authorization = self._auth.header(scope) if ours else None
        for attempt in (0, 1):
            headers = dict(request.headers)
            if authorization:
                headers["Authorization"] = authorization
            answer = self.transport.send(replace(request, headers=headers))
            # What a host says that we were led to is not the registry's word.
            if answer.status != 401 or attempt or not ours or Origin.of(answer.url) != self._origin:
                break
            if not self._auth.obtain(answer, scope, authorization):
                break
            answer.finish()
            authorization = self._auth.header(scope)
        return answer

    def refused(
        self, answer: Answer, message: str, codes: tuple[tuple[str, str], ...] | None = None
    ) -> MlbundleError:
        """Return the error for an answer that says no, with the registry's own words; reads them unless given."""
        codes = error_codes(answer) if codes is None else codes
        named = {code for code, _ in codes}
        kind: type[MlbundleError] = RegistryAnswerInvalid
        hint = None
        if answer.status in {401, 403} or named & {"DENIED", "UNAUTHORIZED"}:
            kind, hint = RegistryDenied, login_hint(self.reference.host)
        elif "NAME_UNKNOWN" in named:
            kind, hint = ReferenceNotFound, "is the name right? some registries want a repository made first"
        elif 400 <= answer.status < 500:
            kind, hint = RegistryDenied, "the registry does not do this for anybody: its own words say why"
        elif answer.status >= 500:
            kind, hint = RegistryUnavailable, "try again later"
        return kind(
            f"{message} (status {answer.status})",
            where=shown(answer.url),
            context=describe(codes),
            hint=hint,
        )

    def blob_url(self, hexadecimal: str) -> str:
        """Return the address of a blob."""
        assert is_hex(hexadecimal)
        return self._url(f"blobs/{PREFIX}{hexadecimal}")

    def uploads_url(self) -> str:
        """Return the address where uploads begin."""
        return self._url("blobs/uploads/")

    def _url(self, path: str) -> str:
        return f"{self._base}{quote(self.reference.repository)}/{path}"

    def _where(self, reference: str) -> str:
        mark = "@" if is_digest(reference) else ":"
        return f"{self.reference}{mark}{reference}"


_DO_NOT_USE = "the registry, or something on the way, changed it: do not use it"


def client_for(reference: RegistryReference, **settings: Any) -> RegistryClient:
    """Return a client of the repository that a reference names; `settings` as for RegistryClient."""
    return RegistryClient(reference.host, reference.repository, **settings)


def check_login(host: str, credentials: Credentials, **settings: Any) -> bool:
    """Ask a registry whether credentials are right; returns False when it wants none. See RegistryClient.check."""
    with RegistryClient(host, "mlbundle/login", credentials=credentials, **settings) as client:
        return client.check()
