"""Decides what a bundle will look like before a byte is read: layers, groups, sizes, the head.

Everything but the digests is known from names and sizes, and a digest has a fixed length. So the head of the
file (documents first, that a reader needs one short read) is laid out with placeholders and written last.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mlbundle.bundle import oci
from mlbundle.bundle.content import BundleContent, Role, SourceFile
from mlbundle.bundle.digests import PREFIX, UNKNOWN_HEX, is_digest, set_digest, sha256_hex
from mlbundle.bundle.document import (
    MAX_IMAGES,
    UNPRINTABLE,
    BundleDocument,
    Chunks,
    chunk_count,
    encode_bundle,
    is_name,
)
from mlbundle.bundle.layout import (
    BUNDLE_LAYER,
    FRAMEWORK_PATH,
    GROUP_BYTES,
    MAX_FURTHER_FRAMEWORKS,
    MODEL_PATH,
    RESERVED_FOLDER,
    TABLE_LAYER,
    further_framework_path,
)
from mlbundle.bundle.paths import check_collisions, check_path, collision_key
from mlbundle.bundle.strictjson import MAX_BYTES as MAX_DOCUMENT_BYTES
from mlbundle.bundle.table import MAX_FILES, MAX_TABLE_BYTES, FileEntry, encode_table
from mlbundle.bundle.tarformat import BLOCK_BYTES, END_BYTES, padded, split_name
from mlbundle.bundle.tarlayers import tar_bytes
from mlbundle.errors import AssetUnavailable, UnsafePath, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OWN_LAYER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """What must not change about a source file while it is packed."""

    device: int
    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: object) -> Identity:
        """Take the identity from what `os.stat` returns."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A source file with its size; `identity` is None for bytes."""

    source: SourceFile
    size_bytes: int
    identity: Identity | None


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer to be: one file as it is, or a tar; `size_bytes` is that of the blob."""

    index: int
    path: str
    media_type: str
    size_bytes: int
    files: tuple[PlannedFile, ...]

    @property
    def tar(self) -> bool:
        """Whether the layer is a tar, compressed or not."""
        return self.media_type in oci.TAR_TYPES


@dataclass
class Hashes:
    """The sha256 (hex) of what has been read so far, by layer index and by file path.

    `diffs` are of layers that are compressed, before compression.
    """

    layers: dict[int, str] = field(default_factory=dict)
    diffs: dict[int, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    chunks: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """A bundle to be: its content and its layers from number 2 (`model.yml`) on."""

    content: BundleContent
    layers: tuple[PlannedLayer, ...]

    @property
    def author_layers(self) -> tuple[PlannedLayer, ...]:
        """The manifests of the author: of the model, of its framework, of further frameworks."""
        return self.layers[: 2 + len(self.content.frameworks)]

    @property
    def data_layers(self) -> tuple[PlannedLayer, ...]:
        """The layers that follow the documents."""
        return self.layers[2 + len(self.content.frameworks) :]

    @property
    def image_blobs(self) -> dict[str, int]:
        """Sizes in bytes of the layers of embedded images, by digest (hex), in the order of the archive."""
        return {key: size for source in self.content.embedded for key, size in source.layers}

    @property
    def data_bytes(self) -> int:
        """How many bytes of source files and image layers will be read."""
        files = sum(file.size_bytes for layer in self.data_layers for file in layer.files)
        return files + sum(self.image_blobs.values())


@dataclass(frozen=True, slots=True)
class Head:
    """The documents that open the file: members in order, and what they are called."""

    members: tuple[tuple[str, bytes], ...]
    manifest_hex: str
    config_hex: str
    set_digest: str
    files: tuple[FileEntry, ...]

    @property
    def size_bytes(self) -> int:
        """How many bytes the head takes in the tar."""
        return sum(BLOCK_BYTES + padded(len(data)) for _, data in self.members)


def make_plan(content: BundleContent) -> Plan:
    """Check the content and arrange it in layers.

    Raises UsageError for names that can't be written, UnsafePath for paths, AssetUnavailable for files that
    are not there.
    """
    content = _in_order(content)
    _check_names(content)
    _check_images(content)
    _check_paths(content)
    by_role: dict[Role, list[PlannedFile]] = {role: [] for role in Role}
    for source in sorted(content.files, key=lambda file: file.path.encode("utf-8")):
        by_role[source.role].append(_measure(source))
    layers = []
    for role in (Role.MODEL, Role.FRAMEWORK, Role.WEIGHT, Role.CONFIG, Role.DOC, Role.CODE):
        layers += [_raw_layer(file) for file in by_role[role]]
    own, small = _split_dataset(by_role[Role.DATASET])
    layers += [_raw_layer(file) for file in own]
    layers += plan_groups(small)
    return Plan(content, tuple(_numbered(layers)))


def make_head(plan: Plan, hashes: Hashes) -> Head:
    """Return the documents of a bundle; a digest that is not known yet is written as zeros.

    Raises UsageError when a document is over its cap: the length does not depend on the digests.
    """
    files = _table(plan, hashes)
    table = encode_table(files)
    bundle = encode_bundle(_bundle_document(plan, hashes, files, table))
    documents = ((BUNDLE_LAYER, bundle), (TABLE_LAYER, table))
    descriptors = [
        oci.Descriptor(oci.CODE_TYPE, sha256_hex(data), len(data), path) for path, data in documents
    ] + [
        oci.Descriptor(
            layer.media_type, hashes.layers.get(layer.index, UNKNOWN_HEX), layer.size_bytes, layer.path
        )
        for layer in plan.layers
    ]
    diff_ids = [descriptor.digest for descriptor in descriptors]
    for index, hexadecimal in hashes.diffs.items():
        diff_ids[index] = PREFIX + hexadecimal
    config = oci.encode_config(_model_config(plan.content), diff_ids)
    manifest = oci.encode_manifest(
        oci.Manifest(oci.Descriptor(oci.CONFIG_TYPE, sha256_hex(config), len(config)), tuple(descriptors))
    )
    _check_caps(manifest, bundle, config, table, len(files))
    embedded = plan.content.embedded
    documents_in_order = (
        manifest,
        *(source.index for source in embedded),
        *(document for source in embedded for document in source.manifests),
        config,
        *(document for source in embedded for document in source.configs),
        bundle,
        table,
        *_author_documents(plan),
    )
    blobs = {sha256_hex(data): data for data in documents_in_order}
    return Head(
        members=(
            (oci.LAYOUT_FILE, oci.LAYOUT_BYTES),
            (oci.INDEX_FILE, oci.encode_index(_index(plan, manifest))),
            *((oci.BLOB_FOLDER + hexadecimal, data) for hexadecimal, data in blobs.items()),
        ),
        manifest_hex=sha256_hex(manifest),
        config_hex=sha256_hex(config),
        set_digest=set_digest((entry.sha256, entry.path) for entry in files),
        files=files,
    )


def _index(plan: Plan, manifest: bytes) -> oci.Index:
    return oci.Index(
        model=oci.Descriptor(oci.MANIFEST_TYPE, sha256_hex(manifest), len(manifest)),
        tag=oci.ref_name(plan.content.model_version),
        images=tuple(
            oci.ImageEntry(
                source.accelerator,
                oci.Descriptor(oci.INDEX_TYPE, sha256_hex(source.index), len(source.index)),
                source.framework,
            )
            for source in plan.content.embedded
        ),
    )


def _author_documents(plan: Plan) -> Iterator[bytes]:
    for layer in plan.author_layers:
        source = layer.files[0].source.source
        assert isinstance(source, bytes)
        yield source


def _in_order(content: BundleContent) -> BundleContent:
    """Return the content with everything that has an order in a bundle in that order."""
    return replace(
        content,
        frameworks=tuple(
            sorted(content.frameworks, key=lambda found: further_framework_path(found[0]).encode("ascii"))
        ),
        images=tuple(sorted(content.images, key=lambda pin: pin.place.order)),
        embedded=tuple(
            sorted(content.embedded, key=lambda source: (source.framework or "", source.accelerator))
        ),
    )


def _check_names(content: BundleContent) -> None:
    named = {
        "model name": content.model_name,
        "model version": content.model_version,
        "framework name": content.framework_name,
        "framework version": content.framework_version,
        **{f"version of {name}": version for name, version in content.frameworks},
    }
    for what, text in named.items():
        if not is_name(text):
            raise UsageError(f"the {what} {ascii(text)[:80]} is empty, too long or not printable")
    if not oci.is_tag(oci.ref_name(content.model_version)):
        raise UsageError(
            f"the model version {content.model_version!r} can't be a tag",
            hint="letters, digits, '.', '-', '+' and '_' only, such as 1.0.0",
        )
    names = [name.lower() for name in (content.framework_name, *(name for name, _ in content.frameworks))]
    if len(set(names)) != len(names):
        raise UsageError(
            f"a bundle holds one manifest of a framework, and here are those of {', '.join(names)}"
        )
    if len(content.frameworks) > MAX_FURTHER_FRAMEWORKS:
        raise UsageError(
            f"{len(content.frameworks)} further frameworks are more than the {MAX_FURTHER_FRAMEWORKS} of a bundle"
        )


def _check_images(content: BundleContent) -> None:
    known = {None, *(name.lower() for name, _ in content.frameworks)}
    places = [pin.place for pin in content.images]
    for pin in content.images:
        if pin.framework not in known:
            raise UsageError(
                f"{pin.image} is pinned for {pin.framework!a}, of which the bundle has no manifest"
            )
        if places.count(pin.place) > 1:
            raise UsageError(f"two images are pinned for {pin.place}")
        if not pin.digests or not all(is_digest(digest) for digest in pin.digests):
            raise UsageError(
                f"the image {pin.image} is pinned by {pin.digests!a}, which is no digest",
                hint="sha256: and 64 lower-case hex digits",
            )
        if not pin.well_named:
            raise UsageError(
                f"{ascii(pin.image)[:80]} for {ascii(pin.architecture)[:40]} and {ascii(pin.accelerator)[:40]} "
                "can't be pinned",
                hint="letters, digits and . _ / : @ + - in a reference, lower case and digits in a platform",
            )
    if len(places) > MAX_IMAGES:
        raise UsageError(f"{len(places)} images are more than the {MAX_IMAGES} that a bundle pins")


def _check_paths(content: BundleContent) -> None:
    frameworks = (FRAMEWORK_PATH, *(further_framework_path(name) for name, _ in content.frameworks))
    for role, paths in ((Role.MODEL, (MODEL_PATH,)), (Role.FRAMEWORK, frameworks)):
        found = [file for file in content.files if file.role is role]
        if sorted(file.path for file in found) != sorted(paths):
            raise UsageError(f"a bundle holds exactly one each of {', '.join(paths)}")
        if not all(isinstance(file.source, bytes) for file in found):
            raise UsageError(f"{', '.join(paths)} are given as bytes")
    for file in content.files:
        check_path(file.path, where=file.pointer)
        reserved = collision_key(file.path).split("\0")[0] == RESERVED_FOLDER
        if reserved and file.role not in {Role.MODEL, Role.FRAMEWORK}:
            raise UnsafePath(f"the folder {RESERVED_FOLDER!r} is taken by the bundle", where=file.path)
    check_collisions(file.path for file in content.files)
    packed = {file.path for file in content.files}
    for asset in content.assets:
        if asset.path not in packed and not any(path.startswith(asset.path + "/") for path in packed):
            raise UsageError(f"the asset {asset.path!r} is not among the files", where=asset.pointer)


def _measure(source: SourceFile) -> PlannedFile:
    if isinstance(source.source, bytes):
        return PlannedFile(source, len(source.source), None)
    where = source.pointer or str(source.source)
    try:
        status = source.source.stat(follow_symlinks=False)
    except OSError as error:
        raise AssetUnavailable(f"can't read {source.source}: {error.strerror}", where=where) from error
    if not stat.S_ISREG(status.st_mode):
        raise AssetUnavailable(f"{source.source} is no regular file", where=where)
    return PlannedFile(source, status.st_size, Identity.of(status))


def _raw_layer(file: PlannedFile) -> PlannedLayer:
    return PlannedLayer(0, file.source.path, oci.RAW_TYPES[file.source.role], file.size_bytes, (file,))


def _split_dataset(files: list[PlannedFile]) -> tuple[list[PlannedFile], list[PlannedFile]]:
    small = [
        file
        for file in files
        if file.size_bytes < OWN_LAYER_BYTES and split_name(file.source.path) is not None
    ]
    chosen = {file.source.path for file in small}
    return [file for file in files if file.source.path not in chosen], small


def plan_groups(files: list[PlannedFile]) -> list[PlannedLayer]:
    """Return the layers of small files, which are given in byte order of their paths."""
    groups: list[list[PlannedFile]] = []
    size_bytes = GROUP_BYTES + 1
    for file in files:
        member_bytes = BLOCK_BYTES + padded(file.size_bytes)
        if size_bytes + member_bytes > GROUP_BYTES:
            groups.append([])
            size_bytes = END_BYTES
        groups[-1].append(file)
        size_bytes += member_bytes
    return [
        PlannedLayer(
            0,
            f"{RESERVED_FOLDER}/groups/dataset-{number:04d}.tar",
            oci.DATASET_GROUP_TYPE,
            tar_bytes(file.size_bytes for file in group),
            tuple(group),
        )
        for number, group in enumerate(groups)
    ]


def _numbered(layers: list[PlannedLayer]) -> Iterator[PlannedLayer]:
    for index, layer in enumerate(layers, start=2):
        yield PlannedLayer(index, layer.path, layer.media_type, layer.size_bytes, layer.files)


def _table(plan: Plan, hashes: Hashes) -> tuple[FileEntry, ...]:
    entries = [
        FileEntry(
            file.source.path,
            file.size_bytes,
            hashes.files.get(file.source.path, UNKNOWN_HEX),
            file.source.mode,
            layer.index,
        )
        for layer in plan.layers
        for file in layer.files
    ]
    return tuple(sorted(entries, key=lambda entry: entry.path.encode("utf-8")))


def _bundle_document(
    plan: Plan, hashes: Hashes, files: tuple[FileEntry, ...], table: bytes
) -> BundleDocument:
    content = plan.content
    return BundleDocument(
        model_name=content.model_name,
        model_version=content.model_version,
        framework_name=content.framework_name,
        framework_version=content.framework_version,
        files_hex=sha256_hex(table),
        files_bytes=len(table),
        files_count=len(files),
        set_digest=set_digest((entry.sha256, entry.path) for entry in files),
        unpacked_bytes=sum(entry.size_bytes for entry in files),
        assets=tuple(sorted(content.assets, key=lambda asset: (asset.pointer, asset.path))),
        chunks=tuple(_chunks(plan, hashes.chunks)),
        images=content.images,
        frameworks=content.frameworks,
    )


def _chunks(plan: Plan, known: Mapping[str, tuple[str, ...]]) -> Iterator[Chunks]:
    for layer in plan.data_layers:
        count = chunk_count(layer.size_bytes)
        if count:
            yield Chunks(layer.path, known.get(layer.path, (UNKNOWN_HEX,) * count))


def _model_config(content: BundleContent) -> oci.ModelConfig:
    weights = [file.path for file in content.files if file.role is Role.WEIGHT]
    return oci.ModelConfig(
        name=content.model_name,
        version=content.model_version,
        license=_printable(content.license),
        description=_printable(content.description),
        format="onnx" if any(path.lower().endswith(".onnx") for path in weights) else None,
    )


def _printable(text: str | None) -> str | None:
    """Fold white space and drop what versions of Go escape differently; the author's text is in model.yml."""
    return UNPRINTABLE.sub("", " ".join(text.split())) or None if text else None


def _check_caps(manifest: bytes, bundle: bytes, config: bytes, table: bytes, count: int) -> None:
    over = (
        max(len(manifest), len(bundle), len(config)) > MAX_DOCUMENT_BYTES
        or len(table) > MAX_TABLE_BYTES
        or count > MAX_FILES
    )
    if over:
        raise UsageError(
            f"{count} files are more than a bundle holds: registries take manifests up to 4 MiB",
            hint=f"at most {MAX_FILES} files, few of them of 1 MiB or more; pack a large dataset as one .npz",
        )
