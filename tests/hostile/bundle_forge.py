"""Makes bundles by hand, sound ones and every kind of broken one; shares no code with the product.

Written from docs/bundle-format.md alone. A `Forge` holds the parts of a small sound bundle. A test edits parts by
hooks, and `build` computes all digests and sizes anew, so that only the fault that is meant is in the file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CNCF = "application/vnd.cncf.model."
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = CNCF + "manifest.v1+json"
CODE, WEIGHT, LABELS, DOC = (
    CNCF + kind for kind in ("code.v1.raw", "weight.v1.raw", "weight.config.v1.raw", "doc.v1.raw")
)
DATASET, GROUP = CNCF + "dataset.v1.raw", CNCF + "dataset.v1.tar"
GROUP_PATH = "mlbundle/groups/dataset-0000.tar"
WEIGHT_ZSTD = CNCF + "weight.v1.tar+zstd"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
IMAGE_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
IMAGE_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
MAX_NAME, MAX_PREFIX = 100, 155
OWN_LAYER = 1 << 20

Edit = Callable[[Any], Any]
Files = Mapping[str, bytes]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def compact(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "surrogatepass")


def header(
    name: str | bytes,
    size: int,
    *,
    mode: int = 0o644,
    kind: bytes = b"0",
    link: bytes = b"",
    size_field: bytes | None = None,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    mtime: int = 0,
) -> bytes:
    """A ustar header with a right checksum, whatever else is wrong with it."""
    raw = name.encode() if isinstance(name, str) else name
    block = bytearray(512)

    def put(offset: int, value: bytes) -> None:
        block[offset : offset + len(value)] = value

    put(0, raw)
    put(100, b"%07o\0" % mode)
    put(108, b"0000000\0")
    put(116, b"0000000\0")
    put(124, size_field if size_field is not None else b"%011o\0" % size)
    put(136, b"%011o\0" % mtime)
    put(148, b" " * 8)
    put(156, kind)
    put(157, link)
    put(257, magic)
    put(329, b"0000000\0")
    put(337, b"0000000\0")
    put(345, prefix)
    put(148, b"%06o\0 " % sum(block))
    return bytes(block)


def member(name: str | bytes, data: bytes, **fields: Any) -> bytes:
    return header(name, len(data), **fields) + data + bytes(-len(data) % 512)


def tar(members: list[bytes]) -> bytes:
    return b"".join(members) + bytes(1024)


def ustar_name(path: str) -> tuple[bytes, bytes] | None:
    """Prefix and name of a path by section 1 of the format, None where there is no header for it."""
    raw = path.encode()
    if len(raw) <= MAX_NAME:
        return b"", raw
    slash = raw[: MAX_PREFIX + 1].rfind(b"/")
    if slash <= 0 or len(raw[slash + 1 :]) > MAX_NAME:
        return None
    return raw[:slash], raw[slash + 1 :]


def file_member(path: str, data: bytes, mode: str = "0644") -> bytes:
    """A file of a group."""
    split = ustar_name(path)
    assert split is not None
    return member(split[1], data, prefix=split[0], mode=int(mode, 8))


def frame(data: bytes, **options: int) -> bytes:
    """A Zstandard frame as section 4 says that `pack` makes it; options change parameters of libzstd."""
    chosen = {
        "compression_level": 3,
        "content_size_flag": 0,
        "checksum_flag": 0,
        "dict_id_flag": 0,
        **options,
    }
    parameters = {zstd.CompressionParameter[name]: value for name, value in chosen.items()}
    compressor = zstd.ZstdCompressor(options=parameters)
    return compressor.compress(data) + compressor.flush()


def described(media_type: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": "sha256:" + sha256(data), "size": len(data), **more}


@dataclass
class Image:
    """An image for one platform; the hooks change its documents."""

    config: bytes
    layers: list[tuple[str, bytes]]
    edit_manifest: Edit = lambda document: document
    edit_pin: Edit = lambda document: document


def image(architecture: str, accelerator: str) -> Image:
    """A small image of two layers, the second one compressed."""
    layers = [
        tar([member("etc/os-release", b"ID=none\n")]),
        tar([member("opt/x", accelerator.encode() * 50)]),
    ]
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer) for layer in layers]},
    }
    return Image(
        compact(config),
        [(IMAGE_LAYER_TYPE, layers[0]), (IMAGE_LAYER_TYPE + "+zstd", frame(layers[1]))],
    )


def images(*accelerators: str) -> dict[str, dict[str, Image]]:
    """Images for two architectures and each of the accelerators."""
    return {name: {arch: image(arch, name) for arch in ("amd64", "arm64")} for name in accelerators}


@dataclass
class Referrer:
    """What refers to the model manifest; `edit` changes its manifest, `edit_entry` its entry of index.json."""

    artifact_type: str
    layers: list[tuple[str, bytes]]
    config: tuple[str, bytes] = (EMPTY_TYPE, b"{}")
    annotations: dict[str, str] = field(default_factory=dict)
    edit: Edit = lambda document: document
    edit_entry: Edit = lambda document: document

    def manifest(self, subject: dict[str, Any]) -> bytes:
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": self.artifact_type,
            "config": described(*self.config),
            "layers": [described(*layer) for layer in self.layers],
            "subject": subject,
            **({"annotations": dict(sorted(self.annotations.items()))} if self.annotations else {}),
        }
        return apply(self.edit, document)


def report(text: str = "fine") -> Referrer:
    """A referrer that says something and is no signature."""
    return Referrer("application/vnd.example.report+json", [("application/json", compact({"says": text}))])


def further_path(name: str) -> str:
    """Where the manifest of a further framework lies."""
    return f"mlbundle/frameworks/{name.lower()}.yml"


def apply(edit: Edit, document: Any) -> bytes:
    result = edit(document)
    return result if isinstance(result, bytes) else compact(document if result is None else result)


@dataclass
class Forge:
    """The parts of a bundle; `edit_*` hooks change a document after it was made, or replace it by bytes.

    A file of `raw` whose type is WEIGHT_ZSTD becomes a compressed tar. `edit_frame` gets the bytes of each compressed
    layer; `edit_tar` the tar of the group and may put another one into the frame than diff id and table say. `further`
    are name, version and manifest of further frameworks; `further_images` their images by name in lower case.
    """

    model_yaml: bytes = b"name: tiny\n"
    framework_yaml: bytes = b"name: none\n"
    raw: list[tuple[str, str, bytes]] = field(
        default_factory=lambda: [
            ("model.onnx", WEIGHT, b"weights " * 40),
            ("labels.txt", LABELS, b"zero\none\n"),
        ]
    )
    group: dict[str, bytes] = field(default_factory=lambda: {"data/a.bin": b"A" * 700, "data/b.bin": b"B"})
    compress_group: bool = False
    modes: dict[str, str] = field(default_factory=dict)
    name: str = "tiny"
    version: str = "1.0.0"
    framework: tuple[str, str] = ("none", "1.0")
    licence: str | None = None
    description: str | None = None
    assets: list[dict[str, str]] = field(
        default_factory=lambda: [{"pointer": "/model/graph_path", "path": "model.onnx"}]
    )
    pins: list[dict[str, Any]] = field(default_factory=list)
    images: dict[str, dict[str, Image]] = field(default_factory=dict)
    further: list[tuple[str, str, bytes]] = field(default_factory=list)
    further_images: dict[str, dict[str, dict[str, Image]]] = field(default_factory=dict)
    referrers: list[Referrer] = field(default_factory=list)
    edit_group: Edit = lambda members: members
    edit_tar: Edit = lambda data: data
    edit_frame: Edit = lambda data: data
    edit_table: Edit = lambda rows: rows
    edit_bundle: Edit = lambda document: document
    edit_config: Edit = lambda document: document
    edit_manifest: Edit = lambda document: document
    edit_image_index: Edit = lambda document: document
    edit_index: Edit = lambda document: document
    edit_members: Edit = lambda members: members
    edit_file: Edit = lambda data: data
    layout: bytes = b'{"imageLayoutVersion":"1.0.0"}'

    def build(self) -> bytes:
        image_documents, image_configs, image_layers, image_entries = self._images()
        data_layers, held, diffs = self._data_layers()
        documents = [
            ("mlbundle/model.yml", CODE, self.model_yaml),
            ("mlbundle/framework.yml", CODE, self.framework_yaml),
            *((further_path(name), CODE, yaml) for name, _, yaml in self._further()),
        ]
        table = self._table([{path: data} for path, _, data in documents] + held)
        bundle = apply(self.edit_bundle, self._bundle(table, data_layers))
        first = [("mlbundle/bundle.json", CODE, bundle), ("mlbundle/files.jsonl", CODE, table), *documents]
        layers = [*first, *data_layers]
        descriptors = [self._descriptor(*layer) for layer in layers]
        diff_ids = [
            diffs.get(path, found["digest"]) for (path, _, _), found in zip(layers, descriptors, strict=True)
        ]
        config = apply(self.edit_config, self._config(diff_ids))
        manifest = apply(self.edit_manifest, {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": described(CNCF + "config.v1+json", config),
            "layers": descriptors,
        })  # fmt: skip
        self.subject = described(MANIFEST_TYPE, manifest)
        attached = [(kind.manifest(self.subject), kind) for kind in self.referrers]
        attached.sort(key=lambda found: sha256(found[0]))
        model = described(
            MANIFEST_TYPE, manifest, annotations={REF_NAME: self._tag()}, artifactType=ARTIFACT_TYPE
        )
        entries = [self._entry(data, kind) for data, kind in attached]
        index = apply(
            self.edit_index,
            {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [model, *image_entries, *entries]},
        )
        ordered = [
            *(manifest, *image_documents, *(data for data, _ in attached)),
            *(config, *image_configs),
            *(data for _, _, data in first),
            *(data for _, kind in attached for _, data in (kind.config, *kind.layers)),
            *image_layers,
            *(data for _, _, data in data_layers),
        ]
        blobs = {sha256(data): data for data in ordered}
        members = [member("oci-layout", self.layout), member("index.json", index)]
        members += [member(f"blobs/sha256/{key}", data) for key, data in blobs.items()]
        return self.edit_file(tar(self.edit_members(members)))

    def _further(self) -> list[tuple[str, str, bytes]]:
        return sorted(self.further, key=lambda found: further_path(found[0]).encode())

    def _tag(self) -> str:
        return self.version.replace("+", "_")

    def _images(self) -> tuple[list[bytes], list[bytes], list[bytes], list[dict[str, Any]]]:
        """Indexes and manifests, configs, layers, entries of index.json; the pins are noted on the way."""
        indexes: list[bytes] = []
        manifests: list[bytes] = []
        configs: list[bytes] = []
        layers: list[bytes] = []
        entries = []
        self.table_of_images = list(self.pins)
        held = [("", self.images), *sorted(self.further_images.items())]
        places = [
            (framework, accelerator, platforms)
            for framework, found in held
            for accelerator, platforms in sorted(found.items())
        ]
        for framework, accelerator, platforms in places:
            made = {name: self._image_manifest(platforms[name]) for name in sorted(platforms)}
            index = apply(self.edit_image_index, {
                "schemaVersion": 2,
                "mediaType": INDEX_TYPE,
                "manifests": [
                    described(MANIFEST_TYPE, data, platform={"architecture": name, "os": "linux"})
                    for name, data in made.items()
                ],
            })  # fmt: skip
            indexes.append(index)
            for name, data in made.items():
                one = platforms[name]
                manifests.append(data)
                configs.append(one.config)
                layers += [blob for _, blob in one.layers]
                pin = self._pin(name, accelerator, index, data, one)
                self.table_of_images.append({"framework": framework, **pin} if framework else pin)
            name = (
                f"fw.{accelerator}-{framework}--{self._tag()}"
                if framework
                else f"fw.{accelerator}.{self._tag()}"
            )
            entries.append(described(INDEX_TYPE, index, annotations={REF_NAME: name}))
        self.table_of_images.sort(
            key=lambda pin: (pin.get("framework", ""), pin["architecture"], pin["accelerator"])
        )
        return indexes + manifests, configs, layers, entries

    @staticmethod
    def _image_manifest(one: Image) -> bytes:
        return apply(one.edit_manifest, {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": described(IMAGE_CONFIG_TYPE, one.config),
            "layers": [described(*layer) for layer in one.layers],
        })  # fmt: skip

    @staticmethod
    def _pin(
        architecture: str, accelerator: str, index: bytes, manifest: bytes, one: Image
    ) -> dict[str, Any]:
        pin = {
            "architecture": architecture,
            "accelerator": accelerator,
            "image": f"example/none:1.0-{accelerator}",
            "index": "sha256:" + sha256(index),
            "manifest": "sha256:" + sha256(manifest),
            "config": "sha256:" + sha256(one.config),
            "size": sum(len(data) for _, data in one.layers),
        }
        return one.edit_pin(pin) or pin

    @staticmethod
    def _entry(data: bytes, kind: Referrer) -> dict[str, Any]:
        entry = described(MANIFEST_TYPE, data, artifactType=kind.artifact_type)
        return kind.edit_entry(entry) or entry

    def _data_layers(self) -> tuple[list[tuple[str, str, bytes]], list[Files], dict[str, str]]:
        """The layers after the documents, the files in each, and the diff ids of those that are compressed."""
        layers: list[tuple[str, str, bytes]] = []
        held: list[Files] = []
        diffs: dict[str, str] = {}
        for path, kind, data in self.raw:
            held.append({path: data})
            blob = data
            if kind == WEIGHT_ZSTD:
                blob = self._compressed(path, tar([file_member(path, data, self._mode(path))]), diffs)
            layers.append((path, kind, blob))
        if self.group:
            ordered = sorted(self.group.items(), key=lambda item: item[0].encode())
            held.append(dict(ordered))
            # A path that is no path for a tar is a fault that is meant.
            members = [
                file_member(path, data, self._mode(path)) if ustar_name(path) else member(path, data)
                for path, data in ordered
            ]
            whole = tar(self.edit_group(members))
            if self.compress_group:
                layers.append((GROUP_PATH, GROUP + "+zstd", self._compressed(GROUP_PATH, whole, diffs)))
            else:
                layers.append((GROUP_PATH, GROUP, whole))
        return layers, held, diffs

    def _compressed(self, path: str, whole: bytes, diffs: dict[str, str]) -> bytes:
        diffs[path] = "sha256:" + sha256(whole)
        result: bytes = self.edit_frame(frame(self.edit_tar(whole)))
        return result

    def _mode(self, path: str) -> str:
        return self.modes.get(path, "0644")

    def _config(self, diff_ids: list[str]) -> dict[str, Any]:
        descriptor: dict[str, Any] = {"name": self.name, "version": self.version}
        if self.licence:
            descriptor["licenses"] = [self.licence]
        if self.description:
            descriptor["description"] = self.description
        weights = [path for path, kind, _ in self.raw if kind in {WEIGHT, WEIGHT_ZSTD}]
        onnx = any(path.lower().endswith(".onnx") for path in weights)
        return {
            "descriptor": descriptor,
            "modelfs": {"type": "layers", "diffIds": diff_ids},
            "config": {"format": "onnx"} if onnx else {},
        }

    @staticmethod
    def _descriptor(path: str, media_type: str, data: bytes) -> dict[str, Any]:
        annotations = {"org.cncf.model.filepath": path, "org.opencontainers.image.title": path}
        return described(media_type, data, annotations=annotations)

    def _table(self, held: list[Files]) -> bytes:
        rows: list[dict[str, Any]] = [
            {
                "path": path,
                "size": len(content),
                "sha256": sha256(content),
                "mode": self._mode(path),
                "layer": index,
            }
            for index, files in enumerate(held, start=2)
            for path, content in files.items()
        ]
        rows.sort(key=lambda row: row["path"].encode())
        self.rows = self.edit_table(rows)
        if isinstance(self.rows, bytes):
            table, self.rows = self.rows, rows
            return table
        return b"".join(compact(row) + b"\n" for row in self.rows)

    def _bundle(self, table: bytes, data_layers: list[tuple[str, str, bytes]]) -> dict[str, Any]:
        lines = sorted(
            f"{row['sha256']}  {row['path']}\n".encode("utf-8", "surrogatepass") for row in self.rows
        )
        frameworks = [{"name": name, "version": version} for name, version, _ in self._further()]
        return {
            "schema": "mlbundle/bundle/v1",
            "model": {"name": self.name, "version": self.version},
            "framework": {"name": self.framework[0], "version": self.framework[1]},
            **({"frameworks": frameworks} if frameworks else {}),
            "files": {"digest": "sha256:" + sha256(table), "size": len(table), "count": len(self.rows)},
            "set_digest": "sha256:" + sha256(b"".join(lines)),
            "unpacked_size": sum(row["size"] for row in self.rows),
            "assets": sorted(self.assets, key=lambda asset: (asset["pointer"], asset["path"])),
            "chunks": list(chunks(data_layers)),
            "images": self.table_of_images,
        }


def chunks(layers: list[tuple[str, str, bytes]]) -> Iterator[dict[str, Any]]:
    """The hashes of every 64 MiB of the layers that are larger."""
    step = 64 << 20
    for path, _, data in layers:
        if len(data) > step:
            yield {
                "path": path,
                "sha256": [sha256(data[start : start + step]) for start in range(0, len(data), step)],
            }


def arranged(
    weights: Files,
    labels: Files | None = None,
    docs: Files | None = None,
    code: Files | None = None,
    data: Files | None = None,
    *,
    compress_weights: bool = False,
    **values: Any,
) -> Forge:
    """A forge with these files where section 4 puts them: layers by kind and path, small data files in one group."""

    def alone(path: str, content: bytes) -> bool:
        return len(content) >= OWN_LAYER or ustar_name(path) is None

    data = data or {}
    weight = WEIGHT_ZSTD if compress_weights else WEIGHT
    kinds = (
        *((weight, weights), (LABELS, labels or {}), (DOC, docs or {}), (CODE, code or {})),
        (DATASET, {path: content for path, content in data.items() if alone(path, content)}),
    )
    raw = [
        (path, kind, content)
        for kind, files in kinds
        for path, content in sorted(files.items(), key=lambda item: item[0].encode())
    ]
    group = {path: content for path, content in data.items() if not alone(path, content)}
    return Forge(raw=raw, group=group, **values)
