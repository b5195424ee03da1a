"""The structure of a bundle: every claim in it held against every other, reading documents only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mlbundle.bundle import oci
from mlbundle.bundle.checked import check_present, read_document
from mlbundle.bundle.digests import PREFIX, set_digest
from mlbundle.bundle.document import BundleDocument, chunk_count, parse_bundle
from mlbundle.bundle.layout import (
    BUNDLE_LAYER,
    DOCUMENT_LAYERS,
    FRAMEWORK_PATH,
    GROUP_BYTES,
    MODEL_PATH,
    RESERVED_FOLDER,
    TABLE_LAYER,
)
from mlbundle.bundle.paths import check_collisions, check_path, collision_key
from mlbundle.bundle.strictjson import MAX_BYTES as MAX_DOCUMENT_BYTES
from mlbundle.bundle.strictjson import loads
from mlbundle.bundle.table import MAX_TABLE_BYTES, FileEntry, parse_table
from mlbundle.bundle.tarformat import header_bytes, padded, split_name
from mlbundle.bundle.tarlayers import tar_bytes
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlbundle.bundle.attachments import EmbeddedImage, Referrer
    from mlbundle.bundle.blobs import BlobReader

MAX_RATIO = 200
"""How many times the size of what is stored may be unpacked: of a compressed layer, and of all files together."""

_MAX_YAML_BYTES = 1 << 20


class PlacedFile(NamedTuple):
    """A file of the table and the byte offset of its data in its layer, once that is decompressed."""

    entry: FileEntry
    offset: int


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the model manifest and the files in it; `diff_hex` is its sha256 before compression."""

    index: int
    path: str
    media_type: str
    hex: str
    size_bytes: int
    diff_hex: str
    files: tuple[PlacedFile, ...]

    @property
    def digest(self) -> str:
        """The digest of the blob with its algorithm."""
        return PREFIX + self.hex

    @property
    def tar(self) -> bool:
        """Whether the layer, once decompressed, is a tar of its files; else it is one file."""
        return self.media_type in oci.TAR_TYPES

    @property
    def compressed(self) -> bool:
        """Whether the blob is compressed."""
        return self.media_type.endswith(oci.ZSTD)

    @property
    def unpacked_bytes(self) -> int:
        """The size of the layer once it is decompressed."""
        return tar_bytes(file.entry.size_bytes for file in self.files) if self.tar else self.size_bytes


@dataclass(frozen=True, slots=True)
class Structure:
    """All that the documents of a bundle say, once it is known to be consistent."""

    index: oci.Index
    manifest_bytes: bytes
    manifest: oci.Manifest
    config: oci.ModelConfig
    diff_ids: tuple[str, ...]
    document: BundleDocument
    files: tuple[FileEntry, ...]
    model_yaml: bytes
    framework_yaml: bytes
    further_frameworks: Mapping[str, bytes]
    layers: tuple[Layer, ...] = ()
    images: tuple[EmbeddedImage, ...] = ()
    referrers: tuple[Referrer, ...] = ()

    def blobs(self) -> dict[str, int]:
        """Return the sizes in bytes of all blobs by digest (hex), in the order in which an archive holds them."""
        documents = self.document.document_paths
        ordered = [
            self.index.model,
            *(image.index for image in self.images),
            *(platform.manifest for image in self.images for platform in image.platforms),
            *(referrer.manifest for referrer in self.referrers),
            self.manifest.config,
            *(platform.config for image in self.images for platform in image.platforms),
            *self.manifest.layers[: len(documents)],
            *(blob for referrer in self.referrers for blob in (referrer.config, *referrer.layers)),
            *(layer for image in self.images for layer in image.layers),
            *self.manifest.layers[len(documents) :],
        ]
        return {descriptor.hex: descriptor.size_bytes for descriptor in ordered}


def read_structure(source: BlobReader, index: bytes, *, whole: bool = True) -> Structure:
    """Return the structure of a bundle whose `index.json` is `index`.

    Without `whole` only the documents are looked at, and large blobs need not be there: that is what a look over
    the network costs. Raises BundleCorrupt, DigestMismatch or UnsafePath, with the place, for a broken one.
    """
    return _Opening(source, whole=whole).run(index)


class _Opening:
    """The steps of opening, in order; each relies on the ones before."""

    def __init__(self, source: BlobReader, *, whole: bool) -> None:
        self._source = source
        self._name = source.name
        self._whole = whole

    def run(self, index_bytes: bytes) -> Structure:
        """Return the structure of the bundle; raises what `open_bundle` raises."""
        where = f"{self._name}!{oci.INDEX_FILE}#"
        index = oci.parse_index(loads(index_bytes, where=where), where)
        manifest_bytes = self._read(index.model, MAX_DOCUMENT_BYTES, "the model manifest")
        manifest = self._read_manifest(manifest_bytes)
        # First of all: what a newer version added is said here, before it looks like a fault elsewhere.
        document = self._read_bundle(manifest.layers[0])
        self._check_layers(manifest, document)
        config, diff_ids = self._read_config(manifest)
        structure = Structure(
            index=index,
            manifest_bytes=manifest_bytes,
            manifest=manifest,
            config=config,
            diff_ids=diff_ids,
            document=document,
            files=self._read_table(manifest.layers[1]),
            model_yaml=self._read(manifest.layers[2], _MAX_YAML_BYTES, MODEL_PATH),
            framework_yaml=self._read(manifest.layers[3], _MAX_YAML_BYTES, FRAMEWORK_PATH),
            further_frameworks={
                name: self._read(layer, _MAX_YAML_BYTES, path)
                for (name, path), layer in zip(
                    document.further_paths.items(), manifest.layers[len(DOCUMENT_LAYERS) :], strict=False
                )
            },
        )
        self._check_statements(structure)
        self._check_assets(structure)
        self._check_chunks(structure)
        structure = replace(structure, layers=self._place_files(structure))
        self._check_ratio(structure)
        return self._with_attachments(structure)

    def _read(self, descriptor: oci.Descriptor, cap_bytes: int, what: str) -> bytes:
        return read_document(self._source, descriptor, cap_bytes, what)

    def _read_manifest(self, data: bytes) -> oci.Manifest:
        where = f"{self._name}!manifest#"
        manifest = oci.parse_manifest(loads(data, where=where), where)
        _check_first_layers(manifest, DOCUMENT_LAYERS, where)
        return manifest

    def _check_layers(self, manifest: oci.Manifest, document: BundleDocument) -> None:
        where = f"{self._name}!manifest#"
        _check_first_layers(manifest, document.document_paths, where)
        _check_layer_order(manifest, len(document.document_paths), where)
        if self._whole:
            for layer in manifest.layers:
                check_present(self._source, layer, layer.path or "")

    def _read_config(self, manifest: oci.Manifest) -> tuple[oci.ModelConfig, tuple[str, ...]]:
        data = self._read(manifest.config, MAX_DOCUMENT_BYTES, "the config")
        where = f"{self._name}!config#"
        config, diff_ids = oci.parse_config(loads(data, where=where), where)
        plain = [
            (diff, layer.hex) for diff, layer in zip(diff_ids, manifest.layers, strict=False)
            if not layer.media_type.endswith(oci.ZSTD)
        ]  # fmt: skip
        if len(diff_ids) != len(manifest.layers) or any(diff != found for diff, found in plain):
            raise BundleCorrupt(
                "the diff ids are not the digests of the layers", where=f"{where}/modelfs/diffIds"
            )
        return config, diff_ids

    def _read_bundle(self, layer: oci.Descriptor) -> BundleDocument:
        where = f"{self._name}!{BUNDLE_LAYER}#"
        return parse_bundle(loads(self._read(layer, MAX_DOCUMENT_BYTES, BUNDLE_LAYER), where=where), where)

    def _read_table(self, layer: oci.Descriptor) -> tuple[FileEntry, ...]:
        return parse_table(self._read(layer, MAX_TABLE_BYTES, TABLE_LAYER), f"{self._name}!{TABLE_LAYER}")

    def _check_statements(self, structure: Structure) -> None:
        """What bundle.json says must be what the other documents say."""
        document, files, config = structure.document, structure.files, structure.config
        where, table = f"{self._name}!{BUNDLE_LAYER}#", structure.manifest.layers[1]
        statements = (
            ("model/name", document.model_name, config.name),
            ("model/version", document.model_version, config.version),
            ("model/version", oci.ref_name(document.model_version), structure.index.tag),
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
        tars = [layer.hex for layer in structure.manifest.layers if layer.media_type in oci.TAR_TYPES]
        if len(set(tars)) != len(tars):
            raise BundleCorrupt(
                "two tars are one blob, and their files have different paths",
                where=f"{self._name}!manifest#/layers",
            )
        return tuple(
            self._placed(index, layer, diff_hex, by_layer[index])
            for index, (layer, diff_hex) in enumerate(
                zip(structure.manifest.layers, structure.diff_ids, strict=True)
            )
        )

    def _placed(self, index: int, layer: oci.Descriptor, diff_hex: str, entries: list[FileEntry]) -> Layer:
        path = layer.path or ""
        placed: tuple[PlacedFile, ...] = ()
        if layer.media_type in oci.TAR_TYPES:
            placed = tuple(self._in_tar(layer, path, entries))
        elif index >= 2:
            stated = [(entry.path, entry.size_bytes, entry.sha256) for entry in entries]
            if stated != [(path, layer.size_bytes, layer.hex)]:
                raise self._not_as_listed(index, path)
            placed = (PlacedFile(entries[0], 0),)
        return Layer(index, path, layer.media_type, layer.hex, layer.size_bytes, diff_hex, placed)

    def _in_tar(self, layer: oci.Descriptor, path: str, entries: list[FileEntry]) -> Iterator[PlacedFile]:
        """Yield the files of a tar at the places that follow from their sizes; the bytes are compared later."""
        where = f"{self._name}!{path}"
        if not entries:
            raise BundleCorrupt("a group without files", where=where)
        group = layer.media_type in oci.GROUP_TYPES
        if not group and [entry.path for entry in entries] != [path]:
            raise self._not_as_listed(entries[0].layer, path)
        size_bytes = tar_bytes(entry.size_bytes for entry in entries)
        if group and size_bytes > GROUP_BYTES:
            raise BundleCorrupt(f"a group of {size_bytes} bytes is over the cap", where=where)
        if not layer.media_type.endswith(oci.ZSTD):
            if size_bytes != layer.size_bytes:
                raise BundleCorrupt(
                    f"the tar has {layer.size_bytes} bytes and its {len(entries)} files take {size_bytes}",
                    where=where,
                )
        elif size_bytes > MAX_RATIO * layer.size_bytes:
            raise BundleCorrupt(f"{size_bytes} bytes from {layer.size_bytes} are a bomb", where=where)
        offset = 0
        for entry in entries:
            if split_name(entry.path) is None:
                raise BundleCorrupt(f"{entry.path!a} does not fit into a tar", where=where)
            offset += header_bytes(entry.size_bytes)
            yield PlacedFile(entry, offset)
            offset += padded(entry.size_bytes)

    def _not_as_listed(self, index: int, path: str) -> BundleCorrupt:
        return BundleCorrupt(
            f"layer {index} is not what the file table says about {path!a}",
            where=f"{self._name}!{TABLE_LAYER}",
        )

    def _check_ratio(self, structure: Structure) -> None:
        stored = sum({layer.hex: layer.size_bytes for layer in structure.manifest.layers}.values())
        if structure.document.unpacked_bytes > MAX_RATIO * stored:
            raise BundleCorrupt(
                f"{structure.document.unpacked_bytes} bytes unpacked are over {MAX_RATIO} times what is stored",
                where=f"{self._name}!{BUNDLE_LAYER}#/unpacked_size",
            )

    def _with_attachments(self, structure: Structure) -> Structure:
        """Read the manifests of images and referrers, which stand among the documents."""
        index, whole = structure.index, self._whole
        if not (index.images or index.referrers):
            return structure
        from mlbundle.bundle.attachments import read_image, read_referrer

        return replace(
            structure,
            images=tuple(
                read_image(self._source, entry, structure.document.images, whole=whole)
                for entry in index.images
            ),
            referrers=tuple(
                read_referrer(self._source, entry, index.model, whole=whole) for entry in index.referrers
            ),
        )


def _check_first_layers(manifest: oci.Manifest, paths: tuple[str, ...], where: str) -> None:
    for index, path in enumerate(paths):
        if index >= len(manifest.layers) or manifest.layers[index].path != path:
            raise BundleCorrupt(
                f"the layer of {path} is not where it must be", where=f"{where}/layers/{index}"
            )


def _check_layer_order(manifest: oci.Manifest, documents: int, where: str) -> None:
    """Check types, paths and order of the layers; the first ones are `documents`."""
    last: tuple[int, bytes] = (-1, b"")
    for index, layer in enumerate(manifest.layers):
        here = f"{where}/layers/{index}"
        path = check_path(layer.path or "", where=here)
        if index < documents:
            if layer.media_type != oci.CODE_TYPE:
                raise BundleCorrupt(f"{path} has the media type {ascii(layer.media_type)[:100]}", where=here)
            continue
        if layer.media_type not in oci.LAYER_RANKS:
            raise BundleCorrupt(f"the media type {ascii(layer.media_type)[:100]} is unknown", where=here)
        rank = (oci.LAYER_RANKS[layer.media_type], path.encode("utf-8"))
        if rank <= last:
            raise BundleCorrupt("the layers are not in order", where=here)
        reserved = collision_key(path).split("\0")[0] == RESERVED_FOLDER
        if reserved != (layer.media_type in oci.GROUP_TYPES):
            raise BundleCorrupt(f"{ascii(path)[:100]} is no path for such a layer", where=here)
        last = rank
