"""Opens a bundle without trusting it: headers and documents only, and every claim against every other.

After `open_bundle` has returned, the structure is sound: every byte of the file belongs to a known blob, the
documents have their digests, sizes agree, and each file of the table has its place. What is not known yet is
whether the large blobs have the bytes that their digests name: `verify` and `unpack` see to that.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlbundle.bundle import oci, tarformat
from mlbundle.bundle.content import RESERVED_FOLDER
from mlbundle.bundle.digests import PREFIX, set_digest, sha256_hex
from mlbundle.bundle.document import BundleDocument, chunk_count, parse_bundle
from mlbundle.bundle.paths import check_collisions, check_path, collision_key
from mlbundle.bundle.plan import DOCUMENT_LAYERS, GROUP_BYTES
from mlbundle.bundle.strictjson import MAX_BYTES as MAX_DOCUMENT_BYTES
from mlbundle.bundle.strictjson import loads
from mlbundle.bundle.table import MAX_FILES, MAX_TABLE_BYTES, FileEntry, parse_table
from mlbundle.errors import (
    BundleCorrupt,
    DigestMismatch,
    NotABundle,
    ReferenceNotFound,
    StorageFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

MAX_MEMBERS = 100_000
MAX_RATIO = 200
"""How many times the size of the file the unpacked files may have (one blob may serve several files)."""

_MAX_YAML_BYTES = 1 << 20
_HINT = "copy or fetch it again, and compare the digest with the author's"


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file of the table and the byte offset of its data in the bundle file."""

    entry: FileEntry
    offset: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the model manifest, where its blob lies, and the files in it."""

    index: int
    path: str
    media_type: str
    hex: str
    size_bytes: int
    offset: int
    files: tuple[PlacedFile, ...]

    @property
    def digest(self) -> str:
        """The digest of the blob with its algorithm."""
        return PREFIX + self.hex

    @property
    def group(self) -> bool:
        """Whether the layer is a tar of small files."""
        return self.media_type == oci.DATASET_GROUP_TYPE


class BundleReader:
    """An open bundle; a context manager. Made by `open_bundle`, and structurally sound."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._descriptor = descriptor
        self.path = path
        self.size_bytes = os.fstat(descriptor).st_size
        self.manifest_bytes = b""
        self.manifest_hex = ""
        self.tag = ""
        self.manifest: oci.Manifest
        self.config: oci.ModelConfig
        self.document: BundleDocument
        self.files: tuple[FileEntry, ...] = ()
        self.layers: tuple[Layer, ...] = ()
        self.model_yaml = b""
        self.framework_yaml = b""

    @property
    def manifest_digest(self) -> str:
        """Digest of the model manifest: the identity of the bundle."""
        return PREFIX + self.manifest_hex

    @property
    def config_digest(self) -> str:
        """Digest of the ModelPack config."""
        return self.manifest.config.digest

    @property
    def set_digest(self) -> str:
        """Digest of the set of files, independent of how they are packed."""
        return self.document.set_digest

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes from `offset`; fewer only at the end of the file."""
        pieces: list[bytes] = []
        while size_bytes > 0:
            piece = os.pread(self._descriptor, size_bytes, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, size_bytes = offset + len(piece), size_bytes - len(piece)
        return b"".join(pieces)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` from `offset`; raises BundleCorrupt when the file ends before."""
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if count == 0:
                raise BundleCorrupt("the file became shorter while it was read", where=str(self.path))
            view, offset = view[count:], offset + count


def open_bundle(path: Path) -> BundleReader:
    """Open a bundle and check its structure.

    Raises ReferenceNotFound when there is no file, NotABundle for a file of another kind, and BundleCorrupt,
    DigestMismatch or UnsafePath, with the byte offset or the JSON pointer, for a broken one.
    """
    descriptor = _open(path)
    reader = BundleReader(path, descriptor)
    try:
        _Opening(reader).run()
    except BaseException:
        reader.close()
        raise
    return reader


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ReferenceNotFound(f"there is no file {path}", where=str(path)) from None
    except OSError as error:
        raise StorageFailed(f"can't read {path}: {error.strerror}", where=str(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotABundle(f"{path} is no regular file", where=str(path), hint="name a .mlb file")
    return descriptor


class _Opening:
    """The steps of opening, in order; each relies on the ones before."""

    def __init__(self, reader: BundleReader) -> None:
        self._reader = reader
        self._name = str(reader.path)
        self._special: dict[str, tarformat.Member] = {}
        self._blobs: dict[str, tarformat.Member] = {}

    def run(self) -> None:
        self._check_kind()
        self._scan()
        self._read_index()
        self._read_manifest()
        self._read_documents()
        self._check_statements()
        self._place_files()
        self._check_no_strays()

    def _check_kind(self) -> None:
        magic = self._reader.read_at(257, 5)
        if magic != b"ustar":
            raise NotABundle(
                "the file is no bundle: it does not begin as a tar",
                where=f"{self._name}, byte 0",
                hint="`mlbundle pack` makes bundles; `mlbundle run FOLDER` takes a manifest",
            )

    def _scan(self) -> None:
        members = tarformat.scan(
            self._reader.read_at, 0, self._reader.size_bytes, where=self._name, limit=MAX_MEMBERS
        )
        for member in members:
            here = f"{self._name}, byte {member.header}"
            check_path(member.name, where=here)
            target, key = self._slot(member.name, here)
            if member.mode != tarformat.MODE_PLAIN:
                raise BundleCorrupt(f"{member.name} has the mode {member.mode:o}", where=here)
            if key in target:
                raise BundleCorrupt(f"{member.name} stands twice", where=here)
            target[key] = member
        for name in (oci.LAYOUT_FILE, oci.INDEX_FILE):
            if name not in self._special:
                raise NotABundle(
                    f"the tar has no {name}: it is no OCI image layout", where=self._name, hint=_HINT
                )

    def _slot(self, name: str, here: str) -> tuple[dict[str, tarformat.Member], str]:
        if name in {oci.LAYOUT_FILE, oci.INDEX_FILE}:
            return self._special, name
        folder, _, hexadecimal = name.rpartition("/")
        if (
            folder + "/" == oci.BLOB_FOLDER
            and len(hexadecimal) == 64
            and set(hexadecimal) <= set("0123456789abcdef")
        ):
            return self._blobs, hexadecimal
        raise BundleCorrupt(
            f"{ascii(name)[:100]} does not belong into a bundle",
            where=here,
            hint="only oci-layout, index.json and blobs/sha256/<digest> do",
        )

    def _read_index(self) -> None:
        layout = self._read_member(self._special[oci.LAYOUT_FILE], MAX_DOCUMENT_BYTES)
        if layout != oci.LAYOUT_BYTES:
            raise BundleCorrupt("the layout version is not 1.0.0", where=f"{self._name}!{oci.LAYOUT_FILE}")
        where = f"{self._name}!{oci.INDEX_FILE}#"
        data = self._read_member(self._special[oci.INDEX_FILE], MAX_DOCUMENT_BYTES)
        descriptor, self._reader.tag = oci.parse_index(loads(data, where=where), where)
        self._reader.manifest_bytes = self._read_blob(descriptor, MAX_DOCUMENT_BYTES, "the model manifest")
        self._reader.manifest_hex = descriptor.hex

    def _read_manifest(self) -> None:
        reader, where = self._reader, f"{self._name}!manifest#"
        manifest = oci.parse_manifest(loads(reader.manifest_bytes, where=where), where)
        _check_layer_order(manifest, where)
        config = self._read_blob(manifest.config, MAX_DOCUMENT_BYTES, "the config")
        config_where = f"{self._name}!config#"
        reader.config = oci.parse_config(
            loads(config, where=config_where), config_where, [layer.digest for layer in manifest.layers]
        )
        reader.manifest = manifest
        for layer in manifest.layers:
            self._locate(layer, layer.path or "")

    def _read_documents(self) -> None:
        reader, layers = self._reader, self._reader.manifest.layers
        where = f"{self._name}!{layers[0].path}#"
        bundle = self._read_blob(layers[0], MAX_DOCUMENT_BYTES, layers[0].path or "")
        reader.document = parse_bundle(loads(bundle, where=where), where)
        table = self._read_blob(layers[1], MAX_TABLE_BYTES, layers[1].path or "")
        reader.files = parse_table(table, f"{self._name}!{layers[1].path}")
        reader.model_yaml = self._read_blob(layers[2], _MAX_YAML_BYTES, "model.yml")
        reader.framework_yaml = self._read_blob(layers[3], _MAX_YAML_BYTES, "framework.yml")

    def _check_statements(self) -> None:
        """What bundle.json says must be what the other documents say."""
        reader, bundle, table = self._reader, self._reader.document, self._reader.manifest.layers[1]
        where = f"{self._name}!{DOCUMENT_LAYERS[0]}#"
        config = reader.config
        statements = (
            ("model/name", bundle.model_name, config.name),
            ("model/version", bundle.model_version, config.version),
            ("model/version", oci.ref_name(bundle.model_version), reader.tag),
            ("files/digest", bundle.files_hex, table.hex),
            ("files/size", bundle.files_bytes, table.size_bytes),
            ("files/count", bundle.files_count, len(reader.files)),
            ("unpacked_size", bundle.unpacked_bytes, sum(entry.size_bytes for entry in reader.files)),
            ("set_digest", bundle.set_digest, set_digest((e.sha256, e.path) for e in reader.files)),
        )
        for pointer, stated, found in statements:
            if stated != found:
                raise BundleCorrupt(f"{stated} is stated where {found} is found", where=f"{where}/{pointer}")
        if bundle.unpacked_bytes > MAX_RATIO * reader.size_bytes:
            raise BundleCorrupt(
                f"{bundle.unpacked_bytes} bytes unpacked are over {MAX_RATIO} times the file",
                where=f"{where}/unpacked_size",
            )
        check_collisions((entry.path for entry in reader.files), where=f"{self._name}!{DOCUMENT_LAYERS[1]}")
        self._check_assets(where)
        self._check_chunks(where)

    def _check_assets(self, where: str) -> None:
        folders = {""}
        for entry in self._reader.files:
            parts = entry.path.split("/")
            folders.update("/".join(parts[: depth + 1]) for depth in range(len(parts)))
        for number, asset in enumerate(self._reader.document.assets):
            if asset.path not in folders:
                raise BundleCorrupt(
                    f"{ascii(asset.path)[:100]} is not in the file table", where=f"{where}/assets/{number}"
                )

    def _check_chunks(self, where: str) -> None:
        expected = [
            (layer.path, chunk_count(layer.size_bytes))
            for layer in self._reader.manifest.layers[len(DOCUMENT_LAYERS) :]
            if chunk_count(layer.size_bytes)
        ]
        if [(chunks.path, len(chunks.sha256)) for chunks in self._reader.document.chunks] != expected:
            raise BundleCorrupt("the chunks are not those of the layers over 64 MiB", where=f"{where}/chunks")

    def _place_files(self) -> None:
        by_layer: list[list[FileEntry]] = [[] for _ in self._reader.manifest.layers]
        where = f"{self._name}!{DOCUMENT_LAYERS[1]}"
        for entry in self._reader.files:
            if not 2 <= entry.layer < len(by_layer):
                raise BundleCorrupt(
                    f"{entry.path!a} is in layer {entry.layer}, which has no files", where=where
                )
            by_layer[entry.layer].append(entry)
        self._reader.layers = tuple(
            self._placed(index, layer, by_layer[index], where)
            for index, layer in enumerate(self._reader.manifest.layers)
        )

    def _placed(self, index: int, layer: oci.Descriptor, entries: list[FileEntry], where: str) -> Layer:
        member = self._locate(layer, layer.path or "")
        if index < 2:
            files: tuple[PlacedFile, ...] = ()
        elif layer.media_type == oci.DATASET_GROUP_TYPE:
            files = tuple(self._group_files(layer, member, entries, where))
        else:
            files = (_raw_file(index, layer, member, entries, where),)
        return Layer(
            index, layer.path or "", layer.media_type, layer.hex, layer.size_bytes, member.offset, files
        )

    def _group_files(
        self, layer: oci.Descriptor, member: tarformat.Member, entries: list[FileEntry], where: str
    ) -> Iterator[PlacedFile]:
        if layer.size_bytes > GROUP_BYTES:
            raise BundleCorrupt(
                f"a group of {layer.size_bytes} bytes is over the cap", where=f"{self._name}!{layer.path}"
            )
        inner = f"{self._name}!{layer.path}"
        end = member.offset + member.size_bytes
        found = tarformat.scan(self._reader.read_at, member.offset, end, where=inner, limit=MAX_FILES)
        count = 0
        for count, held in enumerate(found, start=1):
            check_path(held.name, where=inner)
            entry = entries[count - 1] if count <= len(entries) else None
            if entry is None or (held.name, held.size_bytes, held.mode) != (
                entry.path,
                entry.size_bytes,
                entry.mode,
            ):
                raise BundleCorrupt(f"{held.name!a} is not what the file table says", where=inner)
            yield PlacedFile(entry, held.offset)
        if count != len(entries) or not entries:
            raise BundleCorrupt(f"{len(entries)} files are listed and {count} are here", where=inner)

    def _check_no_strays(self) -> None:
        known = {self._reader.manifest_hex, self._reader.manifest.config.hex}
        known.update(layer.hex for layer in self._reader.manifest.layers)
        stray = next((member for key, member in self._blobs.items() if key not in known), None)
        if stray is not None:
            raise BundleCorrupt(
                f"nothing refers to {stray.name}", where=f"{self._name}, byte {stray.header}", hint=_HINT
            )

    def _locate(self, descriptor: oci.Descriptor, what: str) -> tarformat.Member:
        member = self._blobs.get(descriptor.hex)
        if member is None:
            raise BundleCorrupt(
                f"the blob of {ascii(what)[:100]} is missing",
                where=f"{self._name}!{descriptor.digest}",
                hint=_HINT,
            )
        if member.size_bytes != descriptor.size_bytes:
            raise BundleCorrupt(
                f"{ascii(what)[:100]} should have {descriptor.size_bytes} bytes and has {member.size_bytes}",
                where=f"{self._name}, byte {member.header}",
                hint=_HINT,
            )
        return member

    def _read_member(self, member: tarformat.Member, cap_bytes: int) -> bytes:
        if member.size_bytes > cap_bytes:
            raise BundleCorrupt(
                f"{member.name} has {member.size_bytes} bytes; the cap is {cap_bytes}",
                where=f"{self._name}, byte {member.header}",
            )
        return self._reader.read_at(member.offset, member.size_bytes)

    def _read_blob(self, descriptor: oci.Descriptor, cap_bytes: int, what: str) -> bytes:
        member = self._locate(descriptor, what)
        data = self._read_member(member, cap_bytes)
        if sha256_hex(data) != descriptor.hex:
            raise DigestMismatch(
                f"{what} does not have the digest that names it",
                where=f"{self._name}, byte {member.offset}",
                hint=_HINT,
            )
        return data


def _check_layer_order(manifest: oci.Manifest, where: str) -> None:
    layers = manifest.layers
    if tuple(layer.path for layer in layers[: len(DOCUMENT_LAYERS)]) != DOCUMENT_LAYERS:
        raise BundleCorrupt(f"the first layers are not {', '.join(DOCUMENT_LAYERS)}", where=f"{where}/layers")
    last: tuple[int, bytes] = (-1, b"")
    for index, layer in enumerate(layers):
        here = f"{where}/layers/{index}"
        path = check_path(layer.path or "", where=here)
        if index < len(DOCUMENT_LAYERS):
            if layer.media_type != oci.CODE_TYPE:
                raise BundleCorrupt(f"{path} has the media type {ascii(layer.media_type)[:100]}", where=here)
            continue
        if layer.media_type not in oci.LAYER_ORDER:
            raise BundleCorrupt(f"the media type {ascii(layer.media_type)[:100]} is unknown", where=here)
        rank = (oci.LAYER_ORDER.index(layer.media_type), path.encode("utf-8"))
        if rank <= last:
            raise BundleCorrupt("the layers are not in order", where=here)
        reserved = collision_key(path).split("\0")[0] == RESERVED_FOLDER
        if reserved != (layer.media_type == oci.DATASET_GROUP_TYPE):
            raise BundleCorrupt(f"{ascii(path)[:100]} is no path for such a layer", where=here)
        last = rank


def _raw_file(
    index: int, layer: oci.Descriptor, member: tarformat.Member, entries: list[FileEntry], where: str
) -> PlacedFile:
    path = layer.path or ""
    stated = [(entry.path, entry.size_bytes, entry.sha256) for entry in entries]
    if stated != [(path, layer.size_bytes, layer.hex)]:
        raise BundleCorrupt(
            f"layer {index} is not what the file table says about {ascii(path)[:100]}", where=where
        )
    return PlacedFile(entries[0], member.offset)
