"""Makes bundles by hand, sound ones and every kind of broken one; shares no code with the product.

A `Forge` holds the parts of a small sound bundle. A test edits parts by hooks, and `build` computes all digests
and sizes anew, so that only the fault that is meant is in the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CNCF = "application/vnd.cncf.model."
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = CNCF + "manifest.v1+json"
CODE, WEIGHT, LABELS, DOC = (
    CNCF + kind for kind in ("code.v1.raw", "weight.v1.raw", "weight.config.v1.raw", "doc.v1.raw")
)
DATASET, GROUP = CNCF + "dataset.v1.raw", CNCF + "dataset.v1.tar"
GROUP_PATH = "mlbundle/groups/dataset-0000.tar"

Edit = Callable[[Any], Any]


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


@dataclass
class Forge:
    """The parts of a bundle; `edit_*` hooks change a document after it was made, or replace it by bytes."""

    model_yaml: bytes = b"name: tiny\n"
    framework_yaml: bytes = b"name: none\n"
    raw: list[tuple[str, str, bytes]] = field(
        default_factory=lambda: [
            ("model.onnx", WEIGHT, b"weights " * 40),
            ("labels.txt", LABELS, b"zero\none\n"),
        ]
    )
    group: dict[str, bytes] = field(default_factory=lambda: {"data/a.bin": b"A" * 700, "data/b.bin": b"B"})
    version: str = "1.0.0"
    edit_group: Edit = lambda members: members
    edit_table: Edit = lambda rows: rows
    edit_bundle: Edit = lambda document: document
    edit_config: Edit = lambda document: document
    edit_manifest: Edit = lambda document: document
    edit_index: Edit = lambda document: document
    edit_members: Edit = lambda members: members
    edit_file: Edit = lambda data: data
    layout: bytes = b'{"imageLayoutVersion":"1.0.0"}'

    def build(self) -> bytes:
        group = tar(self.edit_group([member(path, data) for path, data in sorted(self.group.items())]))
        data_layers = [*self.raw, *([(GROUP_PATH, GROUP, group)] if self.group else [])]
        documents = [
            ("mlbundle/model.yml", CODE, self.model_yaml),
            ("mlbundle/framework.yml", CODE, self.framework_yaml),
        ]
        table = self._table(documents, data_layers)
        bundle = self._bytes(self.edit_bundle, self._bundle(table, documents, data_layers))
        layers = [
            ("mlbundle/bundle.json", CODE, bundle),
            ("mlbundle/files.jsonl", CODE, table),
            *documents,
            *data_layers,
        ]
        descriptors = [self._descriptor(*layer) for layer in layers]
        config = self._bytes(self.edit_config, {
            "descriptor": {"name": "tiny", "version": self.version},
            "modelfs": {"type": "layers", "diffIds": [d["digest"] for d in descriptors]},
            "config": {"format": "onnx"},
        })  # fmt: skip
        manifest = self._bytes(self.edit_manifest, {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": {"mediaType": CNCF + "config.v1+json", "digest": "sha256:" + sha256(config), "size": len(config)},
            "layers": descriptors,
        })  # fmt: skip
        index = self._bytes(self.edit_index, {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": MANIFEST_TYPE,
                "digest": "sha256:" + sha256(manifest),
                "size": len(manifest),
                "annotations": {"org.opencontainers.image.ref.name": self.version.replace("+", "_")},
                "artifactType": ARTIFACT_TYPE,
            }],
        })  # fmt: skip
        blobs = {sha256(data): data for data in (manifest, config, *(data for _, _, data in layers))}
        members = [member("oci-layout", self.layout), member("index.json", index)]
        members += [member(f"blobs/sha256/{key}", data) for key, data in blobs.items()]
        return self.edit_file(tar(self.edit_members(members)))

    @staticmethod
    def _bytes(edit: Edit, document: Any) -> bytes:
        result = edit(document)
        return result if isinstance(result, bytes) else compact(document if result is None else result)

    @staticmethod
    def _descriptor(path: str, media_type: str, data: bytes) -> dict[str, Any]:
        annotations = {"org.cncf.model.filepath": path, "org.opencontainers.image.title": path}
        return {
            "mediaType": media_type,
            "digest": "sha256:" + sha256(data),
            "size": len(data),
            "annotations": annotations,
        }

    def _table(
        self, documents: list[tuple[str, str, bytes]], data_layers: list[tuple[str, str, bytes]]
    ) -> bytes:
        rows = []
        for index, (path, media_type, data) in enumerate([*documents, *data_layers], start=2):
            held = self.group if media_type == GROUP else {path: data}
            rows += [
                {
                    "path": name,
                    "size": len(content),
                    "sha256": sha256(content),
                    "mode": "0644",
                    "layer": index,
                }
                for name, content in held.items()
            ]
        rows.sort(key=lambda row: row["path"].encode())
        self.rows = self.edit_table(rows)
        if isinstance(self.rows, bytes):
            table, self.rows = self.rows, rows
            return table
        return b"".join(compact(row) + b"\n" for row in self.rows)

    def _bundle(
        self, table: bytes, documents: list[tuple[str, str, bytes]], data_layers: list[tuple[str, str, bytes]]
    ) -> dict[str, Any]:
        lines = sorted(
            f"{row['sha256']}  {row['path']}\n".encode("utf-8", "surrogatepass") for row in self.rows
        )
        return {
            "schema": "mlbundle/bundle/v1",
            "model": {"name": "tiny", "version": self.version},
            "framework": {"name": "none", "version": "1.0"},
            "files": {"digest": "sha256:" + sha256(table), "size": len(table), "count": len(self.rows)},
            "set_digest": "sha256:" + sha256(b"".join(lines)),
            "unpacked_size": sum(row["size"] for row in self.rows),
            "assets": [{"pointer": "/model/graph_path", "path": "model.onnx"}],
            "chunks": [],
            "images": [],
        }
