"""Framework images as OCI archives: written from the engine, read into it, with the same pin before and after.

OCI image specification 1.1, "Image Layout", as a tar. What is written has one image under its name; what is read may
come from any program and is believed in nothing but its digests.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import oci
from mlbundle.bundle.digests import PREFIX, sha256_hex
from mlbundle.bundle.output import Output, already_there, check_space, publish, temporary_beside
from mlbundle.bundle.tarformat import END_BYTES, encode_header, padding
from mlbundle.errors import DigestMismatch, ImageMismatch, UsageError
from mlbundle.platforms import this_architecture
from mlbundle.runtime.image_export import export_image
from mlbundle.runtime.image_facts import check_labels, inspect_image, key_of, labels_of
from mlbundle.runtime.image_layout import ImageLayout, config_labels
from mlbundle.runtime.image_list import entry_of
from mlbundle.runtime.image_load import load_image, read_image
from mlbundle.runtime.image_names import free_name
from mlbundle.runtime.lock import ImageKey, LockedImage, read_images_lock, record_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.runtime.image_export import ExportedImage

    Progress = Callable[[int, int], None]

_FULL_NAME = "io.containerd.image.name"


@dataclass(frozen=True)
class ArchivedImage:
    """An image that was written to an archive or read from one."""

    file: str
    ref: str
    config_digest: str
    manifest_digest: str
    size_bytes: int
    key: ImageKey | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the image as the JSON document that the commands print."""
        document = asdict(self)
        key = document.pop("key") or dict.fromkeys(("framework", "version", "architecture", "accelerator"))
        return {"schema": "mlbundle/image-archive/v1", **key, **document}


def export_archive(
    client: Any,
    image_id: str,
    destination: Path,
    settings: Settings,
    *,
    ref: str | None = None,
    key: ImageKey | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ArchivedImage:
    """Write an image of the engine as an OCI archive; the same image and libzstd give the same bytes.

    `ref` is the name that is written (default: one that it has), `key` what the image is for (default: what the images
    lock or its labels say). Where the engine's id is no digest of the config,
    the images lock learns that digest, by which the image can be loaded again. Raises UsageError when `destination`
    exists and `overwrite` is not set, and what `export_image` raises; after an error `destination` is as it was.
    """
    if not overwrite and destination.exists():
        raise already_there(destination)
    check_space(0, destination)
    with temporary_beside(destination) as (temporary, descriptor):
        sink = _ArchiveSink(Output(descriptor))
        made = export_image(client, image_id, sink, scratch=settings.cache_dir, progress=progress)
        sink.finish(made, ref or made.ref)
        os.fsync(descriptor)
        publish(temporary, destination, overwrite=overwrite)
    config_digest = PREFIX + made.config_hex
    _learn_config(settings, image_id, config_digest)
    facts = inspect_image(client, image_id)
    return ArchivedImage(
        file=str(destination),
        ref=ref or made.ref,
        config_digest=config_digest,
        manifest_digest=PREFIX + made.manifest_hex,
        size_bytes=sink.size_bytes,
        key=key or _known_key(settings, config_digest) or (key_of(labels_of(facts)) if facts else None),
    )


def _known_key(settings: Settings, config_digest: str) -> ImageKey | None:
    recorded = read_images_lock(settings.images_lock)
    return next((key for key, entry in recorded.items() if entry.config_digest == config_digest), None)


def load_archive(
    client: Any,
    file: Path,
    settings: Settings,
    *,
    stated_key: ImageKey | None = None,
    architecture: str | None = None,
    name: str | None = None,
    update: bool = False,
    progress: Progress | None = None,
) -> ArchivedImage:
    """Load an image from an OCI archive into the engine, checking every digest, and record it in the images lock.

    Of several images `name` (the reference name in its index) or `architecture` says which; default: this machine's.
    What it is for is said by its labels, else by `stated_key`. An image with another config than the one that the
    lock has for the same use is refused unless `update`. Raises what the reader and `load_image` raise, UsageError
    for an image that does not say what it is for, ImageMismatch.
    """
    with ImageLayout(file) as layout:
        manifest = layout.image_manifest(
            architecture or this_architecture(), name, exact=architecture is not None
        )
        image = read_image(manifest, layout)
        found_architecture, labels = config_labels(image.config_bytes)
        key = key_of(labels)
        if key is None and stated_key is None:
            raise UsageError(
                "the image's labels do not say what it is for",
                where=str(file),
                hint="say it with --as FRAMEWORK/VERSION/ARCHITECTURE/ACCELERATOR",
            )
        if key is None:
            assert stated_key is not None
            key, labels = stated_key, _labels(stated_key)
        check_labels(stated_key or key, labels, found_architecture, str(file))
        before = read_images_lock(settings.images_lock).get(key)
        if before is not None and before.config_digest != image.config_digest and not update:
            raise ImageMismatch(
                f"the archive holds another image for {key} than the images lock pins",
                where=f"pinned {before.config_digest}, in the archive {image.config_digest}",
                hint="--update pins this one; programs that rewrite an image's config make another image of it",
            )
        tag = free_name(client, key, image.config_digest)
        identifier = load_image(client, manifest, layout, tag=tag, progress=progress)
    facts = inspect_image(client, identifier) or {"Id": identifier}
    ref = (
        tag if tag in (facts.get("RepoTags") or ()) else next(iter(sorted(facts.get("RepoTags") or ())), tag)
    )
    record_image(settings.images_lock, key, _entry(facts, ref, image.config_digest, before))
    return ArchivedImage(
        file=str(file),
        ref=ref,
        config_digest=image.config_digest,
        manifest_digest=PREFIX + sha256_hex(manifest),
        size_bytes=sum(layer.size_bytes for layer in image.layers),
        key=key,
    )


def _entry(facts: dict[str, Any], ref: str, config_digest: str, before: LockedImage | None) -> LockedImage:
    """Return the lock entry of a loaded image; one that was known keeps how it was made."""
    entry = entry_of(facts, ref, source="loaded", config_digest=config_digest)
    if before is None or before.config_digest != config_digest:
        return entry
    return replace(before, ref=ref, image_id=entry.image_id, size_bytes=entry.size_bytes)


def _labels(key: ImageKey) -> dict[str, str]:
    return {f"io.mlbundle.{part}": value for part, value in asdict(key).items()}


def _learn_config(settings: Settings, image_id: str, config_digest: str) -> None:
    for key, entry in read_images_lock(settings.images_lock).items():
        if entry.config_digest == image_id != config_digest:
            learnt = replace(entry, config_digest=config_digest, image_id=image_id)
            record_image(settings.images_lock, key, learnt)


class _ArchiveSink:
    """Takes blobs in one after the other and writes each at once as a member of a tar."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._sizes: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        """The size of the archive."""
        return self._output.position

    def size_of(self, hexadecimal: str) -> int | None:
        """Return the size of a blob that was written, or None."""
        return self._sizes.get(hexadecimal)

    @contextmanager
    def receive(self, hexadecimal: str, size_bytes: int) -> Iterator[_Member | None]:
        """Write a blob; gives None when it was written already. Raises DigestMismatch at its end."""
        if hexadecimal in self._sizes:
            yield None
            return
        self._output.write(encode_header(oci.BLOB_FOLDER + hexadecimal, size_bytes))
        member = _Member(self._output, hexadecimal, size_bytes)
        yield member
        member.finish()
        self._output.write(padding(size_bytes))
        self._sizes[hexadecimal] = size_bytes

    def finish(self, image: ExportedImage, ref: str) -> None:
        """Write the two documents that make a layout of the blobs, and the end."""
        for name, data in ((oci.INDEX_FILE, _index(image, ref)), (oci.LAYOUT_FILE, oci.LAYOUT_BYTES)):
            self._output.write(encode_header(name, len(data)) + data + padding(len(data)))
        self._output.write(bytes(END_BYTES))
        self._output.finish()


class _Member:
    """A blob on its way into the archive; see PartialBlob."""

    def __init__(self, output: Output, hexadecimal: str, size_bytes: int) -> None:
        import hashlib

        self._output = output
        self._hex = hexadecimal
        self._hash = hashlib.sha256()
        self.size_bytes = size_bytes
        self.received_bytes = 0

    def write(self, view: memoryview) -> None:
        """Append bytes."""
        self._hash.update(view)
        self._output.write(view)
        self.received_bytes += len(view)

    def mark(self) -> None:
        """Nothing is ever taken back: what is not whole is never published."""

    def rollback(self) -> None:
        """Nothing is ever taken back."""

    def finish(self) -> None:
        """Check what was written; raises DigestMismatch."""
        if self.received_bytes != self.size_bytes or self._hash.hexdigest() != self._hex:
            raise DigestMismatch(
                "a part of the image changed while it was written",
                where=f"{PREFIX}{self._hex}",
                hint="try again",
            )


def _index(image: ExportedImage, ref: str) -> bytes:
    """Return `index.json` of one image; its tag is what other programs ask for, its name what they call it."""
    descriptor = oci.Descriptor(oci.MANIFEST_TYPE, image.manifest_hex, len(image.manifest_bytes))
    head, colon, tag = ref.partition("@")[0].rpartition(":")
    named = bool(colon and "/" not in tag and head and oci.is_tag(tag) and head != "sha256")
    annotations = {_FULL_NAME: ref, oci.REF_NAME: tag} if named else {}
    entry = {
        **descriptor.to_document(),
        **({"annotations": annotations} if annotations else {}),
        "platform": {"architecture": image.architecture, "os": image.os},
    }
    return oci.go_json({"schemaVersion": 2, "mediaType": oci.INDEX_TYPE, "manifests": [entry]})
