"""The structure of a bundle file: every claim in it held against every other, reading headers and documents only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from mlbundle.bundle import oci, tarformat
from mlbundle.bundle.content import FRAMEWORK_PATH, MODEL_PATH, RESERVED_FOLDER
from mlbundle.bundle.digests import PREFIX, is_hex, set_digest, sha256_hex
from mlbundle.bundle.document import BundleDocument, chunk_count, parse_bundle
from mlbundle.bundle.paths import check_collisions, check_path, collision_key
from mlbundle.bundle.plan import BUNDLE_LAYER, DOCUMENT_LAYERS, GROUP_BYTES, TABLE_LAYER
from mlbundle.bundle.strictjson import MAX_BYTES as MAX_DOCUMENT_BYTES
from mlbundle.bundle.strictjson import loads
from mlbundle.bundle.table import MAX_FILES, MAX_TABLE_BYTES, FileEntry, parse_table
from mlbundle.errors import BundleCorrupt, DigestMismatch, NotABundle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.bundle.file import BundleFile

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


@dataclass(frozen=True, slots=True)
class Structure:
    """All that the headers and documents of a bundle say, once it is known to be consistent."""

    manifest_bytes: bytes
    manifest_hex: str
    tag: str
    manifest: oci.Manifest
    config: oci.ModelConfig
    document: BundleDocument
    files: tuple[FileEntry, ...]
    layers: tuple[Layer, ...]
    model_yaml: bytes
    framework_yaml: bytes


def read_structure(file: BundleFile) -> Structure:
    """Return the structure of a bundle file.

    Raises NotABundle for a file of another kind, and BundleCorrupt, DigestMismatch or UnsafePath, with the
    byte offset or the JSON pointer, for a broken one.
    """
    return _Opening(file).run()


class _Opening:
    """The steps of opening, in order; each relies on the ones before."""

    def __init__(self, file: BundleFile) -> None:
        self._file = file
        self._name = str(file.path)
        self._special: dict[str, tarformat.Member] = {}
        self._blobs: dict[str, tarformat.Member] = {}

    def run(self) -> Structure:
        """Return the structure of the file; raises what `open_bundle` raises."""
        self._check_kind()
        self._scan()
        entry, tag = self._read_index()
        manifest_bytes = self._read_blob(entry, MAX_DOCUMENT_BYTES, "the model manifest")
        manifest, config = self._read_manifest(manifest_bytes)
        document = self._read_document(manifest.layers[0])
        files = self._read_table(manifest.layers[1])
        structure = Structure(
            manifest_bytes=manifest_bytes,
            manifest_hex=entry.hex,
            tag=tag,
            manifest=manifest,
            config=config,
            document=document,
            files=files,
            layers=(),
            model_yaml=self._read_blob(manifest.layers[2], _MAX_YAML_BYTES, MODEL_PATH),
            framework_yaml=self._read_blob(manifest.layers[3], _MAX_YAML_BYTES, FRAMEWORK_PATH),
        )
        self._check_statements(structure)
        self._check_assets(structure)
        self._check_chunks(structure)
        layers = self._place_files(structure)
        self._check_no_strays(structure)
        return replace(structure, layers=layers)

    def _check_kind(self) -> None:
        magic = self._file.read_at(257, 5)
        if magic != b"ustar":
            raise NotABundle(
                "the file is no bundle: it does not begin as a tar",
                where=f"{self._name}, byte 0",
                hint="`mlbundle pack` makes bundles; `mlbundle run FOLDER` takes a manifest",
            )

    def _scan(self) -> None:
        members = tarformat.scan(
            self._file.read_at, 0, self._file.size_bytes, where=self._name, limit=MAX_MEMBERS
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
        if folder + "/" == oci.BLOB_FOLDER and is_hex(hexadecimal):
            return self._blobs, hexadecimal
        raise BundleCorrupt(
            f"{ascii(name)[:100]} does not belong into a bundle",
            where=here,
            hint="only oci-layout, index.json and blobs/sha256/<digest> do",
        )

    def _read_index(self) -> tuple[oci.Descriptor, str]:
        layout = self._read_member(self._special[oci.LAYOUT_FILE], MAX_DOCUMENT_BYTES)
        if layout != oci.LAYOUT_BYTES:
            raise BundleCorrupt("the layout version is not 1.0.0", where=f"{self._name}!{oci.LAYOUT_FILE}")
        where = f"{self._name}!{oci.INDEX_FILE}#"
        data = self._read_member(self._special[oci.INDEX_FILE], MAX_DOCUMENT_BYTES)
        return oci.parse_index(loads(data, where=where), where)

    def _read_manifest(self, data: bytes) -> tuple[oci.Manifest, oci.ModelConfig]:
        where = f"{self._name}!manifest#"
        manifest = oci.parse_manifest(loads(data, where=where), where)
        _check_layer_order(manifest, where)
        for layer in manifest.layers:
            self._locate(layer, layer.path or "")
        config = self._read_blob(manifest.config, MAX_DOCUMENT_BYTES, "the config")
        where = f"{self._name}!config#"
        digests = [layer.digest for layer in manifest.layers]
        return manifest, oci.parse_config(loads(config, where=where), where, digests)

    def _read_document(self, layer: oci.Descriptor) -> BundleDocument:
        where = f"{self._name}!{BUNDLE_LAYER}#"
        data = self._read_blob(layer, MAX_DOCUMENT_BYTES, BUNDLE_LAYER)
        return parse_bundle(loads(data, where=where), where)

    def _read_table(self, layer: oci.Descriptor) -> tuple[FileEntry, ...]:
        return parse_table(
            self._read_blob(layer, MAX_TABLE_BYTES, TABLE_LAYER), f"{self._name}!{TABLE_LAYER}"
        )

    def _check_statements(self, structure: Structure) -> None:
        """What bundle.json says must be what the other documents say."""
        document, files, config = structure.document, structure.files, structure.config
        where, table = f"{self._name}!{BUNDLE_LAYER}#", structure.manifest.layers[1]
        statements = (
            ("model/name", document.model_name, config.name),
            ("model/version", document.model_version, config.version),
            ("model/version", oci.ref_name(document.model_version), structure.tag),
            ("files/digest", document.files_hex, table.hex),
            ("files/size", document.files_bytes, table.size_bytes),
            ("files/count", document.files_count, len(files)),
            ("unpacked_size", document.unpacked_bytes, sum(entry.size_bytes for entry in files)),
            ("set_digest", document.set_digest, set_digest((entry.sha256, entry.path) for entry in files)),
        )
        for pointer, stated, found in statements:
            if stated != found:
                raise BundleCorrupt(
                    f"{stated!a} is stated where {found!a} is found", where=f"{where}/{pointer}"
                )
        if document.unpacked_bytes > MAX_RATIO * self._file.size_bytes:
            raise BundleCorrupt(
                f"{document.unpacked_bytes} bytes unpacked are over {MAX_RATIO} times the file",
                where=f"{where}/unpacked_size",
            )
        check_collisions((entry.path for entry in files), where=f"{self._name}!{TABLE_LAYER}")

    def _check_assets(self, structure: Structure) -> None:
        known: set[str] = set()
        for entry in structure.files:
            path = entry.path
            while path and path not in known:
                known.add(path)
                path = path.rpartition("/")[0]
        for number, asset in enumerate(structure.document.assets):
            if asset.path not in known:
                raise BundleCorrupt(
                    f"{asset.path!a} is not in the file table",
                    where=f"{self._name}!{BUNDLE_LAYER}#/assets/{number}",
                )

    def _check_chunks(self, structure: Structure) -> None:
        expected = [
            (layer.path, chunk_count(layer.size_bytes))
            for layer in structure.manifest.layers[len(DOCUMENT_LAYERS) :]
            if chunk_count(layer.size_bytes)
        ]
        if [(chunks.path, len(chunks.sha256)) for chunks in structure.document.chunks] != expected:
            raise BundleCorrupt(
                "the chunks are not those of the layers over 64 MiB",
                where=f"{self._name}!{BUNDLE_LAYER}#/chunks",
            )

    def _place_files(self, structure: Structure) -> tuple[Layer, ...]:
        by_layer: list[list[FileEntry]] = [[] for _ in structure.manifest.layers]
        for entry in structure.files:
            if not 2 <= entry.layer < len(by_layer):
                raise BundleCorrupt(
                    f"{entry.path!a} is in layer {entry.layer}, which has no files",
                    where=f"{self._name}!{TABLE_LAYER}",
                )
            by_layer[entry.layer].append(entry)
        return tuple(
            self._placed(index, layer, by_layer[index])
            for index, layer in enumerate(structure.manifest.layers)
        )

    def _placed(self, index: int, layer: oci.Descriptor, entries: list[FileEntry]) -> Layer:
        path = layer.path or ""
        member = self._locate(layer, path)
        files: tuple[PlacedFile, ...] = ()
        if layer.media_type == oci.DATASET_GROUP_TYPE:
            files = tuple(self._group_files(path, member, entries))
        elif index >= 2:
            stated = [(entry.path, entry.size_bytes, entry.sha256) for entry in entries]
            if stated != [(path, layer.size_bytes, layer.hex)]:
                raise BundleCorrupt(
                    f"layer {index} is not what the file table says about {path!a}",
                    where=f"{self._name}!{TABLE_LAYER}",
                )
            files = (PlacedFile(entries[0], member.offset),)
        return Layer(index, path, layer.media_type, layer.hex, layer.size_bytes, member.offset, files)

    def _group_files(
        self, path: str, member: tarformat.Member, entries: list[FileEntry]
    ) -> Iterator[PlacedFile]:
        where = f"{self._name}!{path}"
        if member.size_bytes > GROUP_BYTES:
            raise BundleCorrupt(f"a group of {member.size_bytes} bytes is over the cap", where=where)
        end = member.offset + member.size_bytes
        found = tarformat.scan(self._file.read_at, member.offset, end, where=where, limit=MAX_FILES)
        for held, entry in zip_longest(found, entries):
            if entry is None or held is None:
                raise BundleCorrupt(f"{len(entries)} files are listed and others are here", where=where)
            if (held.name, held.size_bytes, held.mode) != (entry.path, entry.size_bytes, entry.mode):
                raise BundleCorrupt(f"{held.name!a} is not what the file table says", where=where)
            yield PlacedFile(entry, held.offset)
        if not entries:
            raise BundleCorrupt("a group without files", where=where)

    def _check_no_strays(self, structure: Structure) -> None:
        known = {structure.manifest_hex, structure.manifest.config.hex}
        known.update(layer.hex for layer in structure.manifest.layers)
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
        return self._file.read_at(member.offset, member.size_bytes)

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
