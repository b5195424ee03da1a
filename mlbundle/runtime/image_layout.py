"""An OCI archive of any program as a source of blobs: the members of its tar are found, and believed in nothing.

OCI image specification 1.1, "Image Layout"; the tar as POSIX.1-2017 pax and GNU write it. Only plain files and folders
are taken; what is no part of the layout is passed over. A blob's bytes are checked by whoever reads them.
"""

from __future__ import annotations

import re
import tarfile
from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle.bundle import oci, strictjson
from mlbundle.bundle.digests import PREFIX, parse_digest, sha256_hex
from mlbundle.bundle.file import BundleFile
from mlbundle.bundle.strictjson import Fields
from mlbundle.bundle.tarformat import BLOCK_BYTES, padded
from mlbundle.errors import (
    BundleCorrupt,
    DigestMismatch,
    ImageMissing,
    NotABundle,
    ReferenceNotFound,
    UnsafePath,
    UsageError,
)
from mlbundle.platforms import normalise_architecture
from mlbundle.runtime.image_facts import is_index
from mlbundle.runtime.image_layers import DOCKER_MANIFEST_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_MAX_MEMBERS = 100_000
_MAX_EXTENSION_BYTES = 64 << 10
_MAX_ENTRIES = 1000
_MAX_DEPTH = 3
_MAX_LABELS = 1000
_MANIFEST_TYPES = (oci.MANIFEST_TYPE, DOCKER_MANIFEST_TYPE)
_PLAIN, _FOLDER = {tarfile.REGTYPE, tarfile.AREGTYPE}, tarfile.DIRTYPE
_EXTENSIONS = {tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME}
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\n]{1,100})=")
_HINT = "an OCI archive: mlbundle images export, or skopeo copy … oci-archive:FILE"


class _Place(NamedTuple):
    """Where the bytes of a member are."""

    offset: int
    size_bytes: int


class _Candidate(NamedTuple):
    """An image that the index lists."""

    hex: str
    size_bytes: int
    architecture: str | None
    name: str | None


class ImageLayout:
    """The blobs of an OCI archive, a `BlobReader` and a context manager.

    Raises ReferenceNotFound, NotABundle for a file of another kind, BundleCorrupt and UnsafePath for a broken one.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ReferenceNotFound(f"there is no file {path}", where=str(path), hint=_HINT)
        self._file = BundleFile(path)
        self.name = self._file.name
        self._documents: dict[str, _Place] = {}
        self._blobs: dict[str, _Place] = {}
        try:
            for name, place, offset in _members(self._file):
                self._take(name, place, offset)
            if oci.INDEX_FILE not in self._documents or oci.LAYOUT_FILE not in self._documents:
                raise NotABundle("the tar is no OCI image layout", where=self.name, hint=_HINT)
            self._check_version()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size of a blob, or None."""
        place = self._blobs.get(hexadecimal)
        return None if place is None else place.size_bytes

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`."""
        place = self._blobs[hexadecimal]
        return self._file.read_at(place.offset + offset, max(0, min(size_bytes, place.size_bytes - offset)))

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob."""
        place = self._blobs[hexadecimal]
        if offset + len(view) > place.size_bytes:
            raise BundleCorrupt("a blob ends too early", where=self.where(hexadecimal, offset))
        self._file.read_into(view, place.offset + offset)

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the byte in the file, for errors."""
        place = self._blobs.get(hexadecimal)
        return (
            f"{self.name}!{PREFIX}{hexadecimal}"
            if place is None
            else f"{self.name}, byte {place.offset + offset}"
        )

    def image_manifest(self, architecture: str, name: str | None = None, *, exact: bool = False) -> bytes:
        """Return the manifest of the image for an architecture, checked against its digest.

        `name` is that in the index, for an archive of several. The only image there is is taken whatever it is for,
        unless `exact`. Raises ImageMissing, UsageError when several fit, BundleCorrupt, DigestMismatch.
        """
        found = list(dict.fromkeys(self._candidates()))
        chosen = [image for image in found if name in {None, image.name}]
        if len({image.hex for image in chosen}) > 1 or exact:
            chosen = [image for image in chosen if self._architecture(image) == architecture]
        listed = tuple(f"{image.name or '-'} {self._architecture(image)}" for image in found)
        if not chosen:
            what = f"{name!r} for {architecture}" if name else architecture
            raise ImageMissing(f"the archive has no image {what}", where=self.name, context=listed)
        if len({image.hex for image in chosen}) > 1:
            raise UsageError(
                "the archive has several images", where=self.name, context=listed, hint="name one with --name"
            )
        return self._document(chosen[0].hex, chosen[0].size_bytes)

    def _take(self, name: str, place: _Place, offset: int) -> None:
        here = f"{self.name}, byte {offset}"
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise UnsafePath(f"{ascii(name)[:100]} leaves the archive", where=here)
        plain = "/".join(part for part in parts if part not in {"", "."})
        blob = _BLOB.fullmatch(plain)
        target, key = (self._blobs, blob[1]) if blob else (self._documents, plain)
        if key in target:
            raise BundleCorrupt(f"{ascii(plain)[:100]} stands twice", where=here)
        target[key] = place

    def _candidates(self) -> Iterator[_Candidate]:
        yield from self._listed(self._plain(oci.INDEX_FILE), f"{self.name}!{oci.INDEX_FILE}", None, 0)

    def _check_version(self) -> None:
        where = f"{self.name}!{oci.LAYOUT_FILE}"
        layout = Fields(strictjson.loads(self._plain(oci.LAYOUT_FILE), where=where), where)
        layout.constant("imageLayoutVersion", "1.0.0")

    def _plain(self, name: str) -> bytes:
        place = self._documents[name]
        if place.size_bytes > strictjson.MAX_BYTES:
            raise BundleCorrupt(f"{name} has {place.size_bytes} bytes", where=self.name)
        return self._file.read_at(place.offset, place.size_bytes)

    def _listed(self, index: bytes, where: str, name: str | None, depth: int) -> Iterator[_Candidate]:
        """Yield the images of an index and of those in it; what else is listed, such as attestations, is not."""
        fields = Fields(strictjson.loads(index, where=where), where)
        fields.constant("schemaVersion", 2)
        for entry in fields.objects("manifests", maximum=_MAX_ENTRIES):
            media_type = entry.text("mediaType")
            hexadecimal = parse_digest(entry.text("digest"), where=f"{entry.where}/digest")
            size_bytes = entry.integer("size", maximum=strictjson.MAX_BYTES)
            inner_name = _annotation(entry, oci.REF_NAME) or name
            if is_index(media_type):
                if depth >= _MAX_DEPTH:
                    raise BundleCorrupt(f"indexes are nested deeper than {_MAX_DEPTH}", where=entry.where)
                document = self._document(hexadecimal, size_bytes)
                yield from self._listed(document, f"{self.name}!{PREFIX}{hexadecimal}", inner_name, depth + 1)
            elif media_type in _MANIFEST_TYPES and not entry.has("artifactType"):
                platform = entry.object("platform").text("architecture") if entry.has("platform") else None
                if platform != "unknown":
                    yield _Candidate(
                        hexadecimal, size_bytes, platform and normalise_architecture(platform), inner_name
                    )

    def _architecture(self, image: _Candidate) -> str:
        """Return what an image is for: as the index says, else its config."""
        if image.architecture is not None:
            return image.architecture
        where = f"{self.name}!{PREFIX}{image.hex}"
        manifest = Fields(strictjson.loads(self._document(image.hex, image.size_bytes), where=where), where)
        config = manifest.object("config")
        hexadecimal = parse_digest(config.text("digest"), where=f"{config.where}/digest")
        content = self._document(hexadecimal, config.integer("size", maximum=strictjson.MAX_BYTES))
        return config_labels(content)[0]

    def _document(self, hexadecimal: str, size_bytes: int) -> bytes:
        if self.size_of(hexadecimal) != size_bytes:
            raise BundleCorrupt(
                f"{PREFIX}{hexadecimal} is not in the archive with {size_bytes} bytes", where=self.name
            )
        content = self.read_at(hexadecimal, 0, size_bytes)
        if sha256_hex(content) != hexadecimal:
            raise DigestMismatch(
                "a document does not have the digest that names it", where=self.where(hexadecimal)
            )
        return content


def config_labels(config: bytes) -> tuple[str, dict[str, str]]:
    """Return architecture and labels of an image config; raises BundleCorrupt."""
    where = "image config"
    fields = Fields(strictjson.loads(config, where=where), where)
    inner: Any = fields.object("config") if fields.has("config") else None
    labels: dict[str, str] = {}
    if inner is not None and inner.has("Labels"):
        value = strictjson.loads(config, where=where)["config"]["Labels"] or {}
        if not isinstance(value, dict) or len(value) > _MAX_LABELS:
            raise BundleCorrupt("the labels are no object of a bearable size", where=f"{where}/config/Labels")
        labels = {name: text for name, text in value.items() if isinstance(text, str)}
    return normalise_architecture(fields.text("architecture")), labels


def _annotation(entry: Fields, name: str) -> str | None:
    if not entry.has("annotations"):
        return None
    annotations = entry.object("annotations")
    return annotations.text(name) if annotations.has(name) else None


def _members(file: BundleFile) -> Iterator[tuple[str, _Place, int]]:
    """Yield name, place and header offset of every plain file of a tar, reading headers only."""
    position, extended = 0, _Extended()
    for _ in range(_MAX_MEMBERS):
        block = file.read_at(position, BLOCK_BYTES)
        if block == bytes(BLOCK_BYTES):
            return
        here = f"{file.name}, byte {position}"
        member = _parse_header(block, here, first=position == 0)
        stated = None if member.type in _EXTENSIONS else extended.size_bytes
        size_bytes = member.size if stated is None else stated
        place = _Place(position + BLOCK_BYTES, size_bytes)
        if place.offset + size_bytes > file.size_bytes:
            raise BundleCorrupt(
                f"{ascii(member.name)[:100]} claims {size_bytes} bytes and the file ends before",
                where=here,
                hint="it was cut short; copy or fetch it again",
            )
        if member.type in _EXTENSIONS:
            if member.size > _MAX_EXTENSION_BYTES:
                raise BundleCorrupt(f"a header of {member.size} bytes is over the cap", where=here)
            extended.add(member.type, file.read_at(place.offset, member.size), here)
        else:
            if member.type in _PLAIN:
                yield extended.name or member.name, place, position
            elif member.type != _FOLDER:
                raise BundleCorrupt(
                    f"{ascii(member.name)[:100]} is neither a plain file nor a folder", where=here
                )
            extended = _Extended()
        position = place.offset + padded(size_bytes)
    raise BundleCorrupt(f"more than {_MAX_MEMBERS} members", where=file.name)


def _parse_header(block: bytes, here: str, *, first: bool) -> tarfile.TarInfo:
    """Return one header by the library's reader, which sees nothing but these 512 bytes."""
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        if first:
            raise NotABundle("the file is no tar", where=here, hint=_HINT) from error
        raise BundleCorrupt(f"a broken header: {error}", where=here) from error
    if member.size < 0:
        raise BundleCorrupt("a member of negative size", where=here)
    return member


class _Extended:
    """What pax and GNU headers say about the member that follows."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.size_bytes: int | None = None

    def add(self, kind: bytes, body: bytes, here: str) -> None:
        """Take in the body of one header; raises BundleCorrupt."""
        try:
            if kind == tarfile.GNUTYPE_LONGNAME:
                self.name = body.rstrip(b"\0").decode("utf-8")
                return
            for key, value in _pax_records(body):
                if key == b"path":
                    self.name = value.decode("utf-8")
                elif key == b"size":
                    self.size_bytes = _number(value)
                elif key.startswith(b"GNU.sparse"):
                    raise BundleCorrupt("a sparse file", where=here)
        except ValueError as error:
            raise BundleCorrupt(f"a broken pax header: {error}", where=here) from None


def _pax_records(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position < len(body):
        match = _PAX_RECORD.match(body, position)
        end = position + int(match[1]) if match else 0
        if match is None or end <= match.end() or end > len(body) or body[end - 1 : end] != b"\n":
            raise ValueError(f"byte {position}")
        yield match[2], body[match.end() : end - 1]
        position = end


def _number(value: bytes) -> int:
    if not re.fullmatch(rb"[0-9]{1,18}", value):
        raise ValueError("a size that is no number")
    return int(value)
