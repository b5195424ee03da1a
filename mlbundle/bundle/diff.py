"""What differs between two bundles: manifests by field, files, images, claims, signatures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlbundle.manifest.nodes import Block, Node, Scalar
from mlbundle.manifest.source import parse_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlbundle.bundle.reader import BundleReader

SCHEMA = "mlbundle/diff/v1"
SECTIONS = ("model", "claims", "framework", "files", "images", "attachments")
_CLAIMS = "/expected"
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; a side is None where it has nothing there.

    `place` is a JSON pointer, a path or a platform; of a further framework it is its name, before a pointer with `#`.
    """

    section: str
    place: str
    left: Any
    right: Any

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`, seen from the left."""
        if self.left is None:
            return "added"
        return "removed" if self.right is None else "changed"


@dataclass(frozen=True)
class Difference:
    """All differences between two bundles; `same_files` and `same_manifest` compare their digests."""

    left: str
    right: str
    left_digests: Mapping[str, str]
    right_digests: Mapping[str, str]
    changes: tuple[Change, ...]

    @property
    def same_manifest(self) -> bool:
        """Whether the two are one bundle, signatures and embedded images aside."""
        return self.left_digests["manifest"] == self.right_digests["manifest"]

    @property
    def same_files(self) -> bool:
        """Whether the two hold the same files, however they are packed."""
        return self.left_digests["set"] == self.right_digests["set"]

    def to_document(self) -> dict[str, Any]:
        """Return the document that `diff --json` prints."""
        return {
            "schema": SCHEMA,
            "left": {"name": self.left, **self.left_digests},
            "right": {"name": self.right, **self.right_digests},
            "same_manifest": self.same_manifest,
            "same_files": self.same_files,
            "changes": [
                {
                    "section": change.section,
                    "kind": change.kind,
                    "place": change.place,
                    "left": change.left,
                    "right": change.right,
                }
                for change in self.changes
            ],
        }


def diff(left: BundleReader, right: BundleReader) -> Difference:
    """Compare two open bundles by their documents; no large blob is read."""
    changes = [
        *_manifest_changes("model", left.model_yaml, right.model_yaml),
        *_manifest_changes("framework", left.framework_yaml, right.framework_yaml),
        *_further_changes(left, right),
        *_changes("files", _files(left), _files(right)),
        *_changes("images", _images(left), _images(right)),
        *_changes("attachments", _attachments(left), _attachments(right)),
    ]
    return Difference(
        left=left.name,
        right=right.name,
        left_digests={"manifest": left.manifest_digest, "set": left.set_digest},
        right_digests={"manifest": right.manifest_digest, "set": right.set_digest},
        changes=tuple(sorted(changes, key=lambda change: SECTIONS.index(change.section))),
    )


def _manifest_changes(section: str, left: bytes, right: bytes) -> Iterator[Change]:
    """Compare two YAML documents by field; where they say the same in other words, one change says so."""
    if left == right:
        return
    flat_left, flat_right = _fields(left), _fields(right)
    found = False
    for change in _changes(section, flat_left, flat_right):
        found = True
        claim = section == "model" and change.place.startswith(_CLAIMS)
        yield Change("claims", change.place, change.left, change.right) if claim else change
    if not found:
        yield Change(section, "", f"{len(left)} bytes", f"{len(right)} bytes with other layout or comments")


def _further_changes(left: BundleReader, right: BundleReader) -> Iterator[Change]:
    """Compare the further frameworks by name: one that only one side has is one change."""
    both = [name for name in left.further_frameworks if name in right.further_frameworks]
    yield from _changes("framework", _further_versions(left, both), _further_versions(right, both))
    for name in both:
        old, new = left.further_frameworks[name], right.further_frameworks[name]
        for change in _manifest_changes("framework", old, new):
            yield replace(change, place=f"{name}#{change.place}")


def _further_versions(reader: BundleReader, but: list[str]) -> dict[str, str]:
    found = {name.lower(): f"{name} {version}" for name, version in reader.document.frameworks}
    return {name: text for name, text in found.items() if name not in but}


def _fields(text: bytes) -> dict[str, str]:
    """Return the words of a manifest by JSON pointer, as they are written: version 1.10 is not 1.1.

    A document that is not acceptable as YAML is one field.
    """
    source = parse_source(text, "manifest")
    if source.root is None or source.problems:
        return {"": text.decode("utf-8", "replace")}
    return dict(_flatten(source.root))


def _flatten(node: Node) -> Iterator[tuple[str, str]]:
    if isinstance(node, Scalar):
        yield node.pointer, node.text
    elif isinstance(node, Block):
        if not node.entries:
            yield node.pointer, "{}"
        for entry in node.entries:
            yield from _flatten(entry.value)
    else:
        if not node.items:
            yield node.pointer, "[]"
        for inner in node.items:
            yield from _flatten(inner)


def _changes(section: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Change]:
    for place in [*left, *(key for key in right if key not in left)]:
        old, new = left.get(place, _ABSENT), right.get(place, _ABSENT)
        if old != new:
            yield Change(section, place, None if old is _ABSENT else old, None if new is _ABSENT else new)


def _files(reader: BundleReader) -> dict[str, dict[str, Any]]:
    """Return what is to be compared of each file; the manifests have sections of their own."""
    return {
        entry.path: {"size": entry.size_bytes, "sha256": entry.sha256, "mode": f"{entry.mode:04o}"}
        for entry in reader.files
        if not entry.path.startswith("mlbundle/")
    }


def _images(reader: BundleReader) -> dict[str, dict[str, Any]]:
    pins = {}
    for pin in reader.document.images:
        document = pin.to_document()
        pins[str(pin.place)] = {key: document[key] for key in document if key not in pin.place._fields}
    return pins


def _attachments(reader: BundleReader) -> dict[str, str]:
    index = reader.structure.index
    images = {
        f"image for {'/'.join(filter(None, entry.order))}": entry.descriptor.digest for entry in index.images
    }
    referrers = {f"{entry.artifact_type} {entry.descriptor.digest}": "attached" for entry in index.referrers}
    return {**images, **referrers}
