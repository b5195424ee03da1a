"""The archive form of a bundle: blobs as members of a tar, found by their headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mlbundle.bundle import oci, tarformat
from mlbundle.bundle.digests import is_hex
from mlbundle.bundle.paths import check_path
from mlbundle.bundle.strictjson import MAX_BYTES as MAX_DOCUMENT_BYTES
from mlbundle.errors import BundleCorrupt, NotABundle

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_MEMBERS = 100_000
DAMAGED = "copy or fetch it again, and compare the digest with the author's"


class RandomAccess(Protocol):
    """Bytes at offsets: a file, or a web address that answers range requests."""

    @property
    def name(self) -> str:
        """How errors call it."""

    @property
    def size_bytes(self) -> int:
        """Its length."""

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes from `offset`; fewer only at the end."""

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset`; raises BundleCorrupt when the bytes end before."""

    def close(self) -> None:
        """Let go of it."""


class ArchiveBlobs:
    """The blobs of a bundle file.

    With `lazy`, headers are read only as far as is needed to find what is asked for: over a slow connection the
    documents, which stand first, cost one short read. Else the whole archive is looked at, to its exact end.
    Raises NotABundle and BundleCorrupt with the byte offset.
    """

    def __init__(self, file: RandomAccess, *, lazy: bool = False) -> None:
        self._file = file
        self._special: dict[str, tarformat.Member] = {}
        self._blobs: dict[str, tarformat.Member] = {}
        if file.read_at(257, 5) != b"ustar":
            raise NotABundle(
                "the file is no bundle: it does not begin as a tar",
                where=f"{self.name}, byte 0",
                hint="`mlbundle pack` makes bundles; `mlbundle run FOLDER` takes a manifest",
            )
        self._rest = tarformat.scan(file.read_at, 0, file.size_bytes, where=self.name, limit=MAX_MEMBERS)
        if not lazy:
            for _ in self._scan():
                pass

    @property
    def name(self) -> str:
        """How errors call the file."""
        return self._file.name

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self._file.size_bytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_index(self) -> bytes:
        """Return `index.json`; raises NotABundle where there is none, BundleCorrupt for another layout version."""
        layout = self._file_of(oci.LAYOUT_FILE)
        if layout != oci.LAYOUT_BYTES:
            raise BundleCorrupt("the layout version is not 1.0.0", where=f"{self.name}!{oci.LAYOUT_FILE}")
        return self._file_of(oci.INDEX_FILE)

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size of a blob, or None when the archive has none of this name."""
        member = self._find(hexadecimal)
        return None if member is None else member.size_bytes

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes of a blob from `offset`."""
        member = self._member(hexadecimal)
        return self._file.read_at(member.offset + offset, max(0, min(size_bytes, member.size_bytes - offset)))

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset` of a blob."""
        member = self._member(hexadecimal)
        if offset + len(view) > member.size_bytes:
            raise BundleCorrupt("a blob ends too early", where=self.where(hexadecimal, offset))
        self._file.read_into(view, member.offset + offset)

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        """Return the byte in the file, for errors."""
        member = self._find(hexadecimal)
        if member is None:
            return f"{self.name}!sha256:{hexadecimal}"
        return f"{self.name}, byte {member.offset + offset}"

    def refuse_strays(self, known: set[str]) -> None:
        """Raise BundleCorrupt when the archive holds a blob that nothing refers to."""
        stray = next((member for key, member in self._blobs.items() if key not in known), None)
        if stray is not None:
            raise BundleCorrupt(
                f"nothing refers to {stray.name}", where=f"{self.name}, byte {stray.header}", hint=DAMAGED
            )

    def _scan(self) -> Iterator[None]:
        """Take in one member after the other; both special files must be there at the end."""
        for member in self._rest:
            self._take(member)
            yield
        for name in (oci.LAYOUT_FILE, oci.INDEX_FILE):
            if name not in self._special:
                raise NotABundle(
                    f"the tar has no {name}: it is no OCI image layout", where=self.name, hint=DAMAGED
                )

    def _take(self, member: tarformat.Member) -> None:
        here = f"{self.name}, byte {member.header}"
        check_path(member.name, where=here)
        target, key = self._slot(member.name, here)
        if member.mode != tarformat.MODE_PLAIN:
            raise BundleCorrupt(f"{member.name} has the mode {member.mode:o}", where=here)
        if key in target:
            raise BundleCorrupt(f"{member.name} stands twice", where=here)
        target[key] = member

    def _slot(self, name: str, here: str) -> tuple[dict[str, tarformat.Member], str]:
        if name in {oci.LAYOUT_FILE, oci.INDEX_FILE}:
            return self._special, name
        folder, _, hexadecimal = name.rpartition("/")
        if folder + "/" == oci.BLOB_FOLDER and is_hex(hexadecimal):
            return self._blobs, hexadecimal
        raise BundleCorrupt(
            f"{ascii(name)[:100]} does not belong into a bundle",
            where=here,
            hint="only oci-layout, index.json and blobs/sha256/<digest> do",
        )

    def _find(self, hexadecimal: str) -> tarformat.Member | None:
        if hexadecimal not in self._blobs:
            for _ in self._scan():
                if hexadecimal in self._blobs:
                    break
        return self._blobs.get(hexadecimal)

    def _member(self, hexadecimal: str) -> tarformat.Member:
        member = self._find(hexadecimal)
        if member is None:
            raise BundleCorrupt(
                f"the blob sha256:{hexadecimal} is missing", where=self.where(hexadecimal), hint=DAMAGED
            )
        return member

    def _file_of(self, name: str) -> bytes:
        while name not in self._special and next(self._scan(), self) is None:
            pass
        member = self._special[name]
        if member.size_bytes > MAX_DOCUMENT_BYTES:
            raise BundleCorrupt(
                f"{name} has {member.size_bytes} bytes; the cap is {MAX_DOCUMENT_BYTES}",
                where=f"{self.name}, byte {member.header}",
            )
        return self._file.read_at(member.offset, member.size_bytes)
