"""OCI archives of other programs: what is read, and what is refused before anything of it is used."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.errors import (
    BundleCorrupt,
    DigestMismatch,
    ImageMissing,
    MlbundleError,
    NotABundle,
    ReferenceNotFound,
    UnsafePath,
    UsageError,
)
from mlbundle.runtime.image_layout import ImageLayout, config_labels

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
NAME = "org.opencontainers.image.ref.name"
LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'

Files = dict[str, bytes]


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def put(files: Files, data: bytes, media_type: str = MANIFEST, **more: Any) -> dict[str, Any]:
    """Add a blob and return its descriptor."""
    hexadecimal = hashlib.sha256(data).hexdigest()
    files[f"blobs/sha256/{hexadecimal}"] = data
    return {"mediaType": media_type, "digest": f"sha256:{hexadecimal}", "size": len(data), **more}


def image(files: Files, architecture: str = "amd64", *, platform: bool = True, **more: Any) -> dict[str, Any]:
    config = put(files, as_json({"architecture": architecture, "os": "linux"}), "config")
    stated = {"platform": {"architecture": architecture, "os": "linux"}} if platform else {}
    document = {"schemaVersion": 2, "config": config, "layers": [], "for": architecture, "more": str(more)}
    return put(files, as_json(document), **stated, **more)


def index(*entries: dict[str, Any]) -> bytes:
    return as_json({"schemaVersion": 2, "manifests": list(entries)})


def tar(files: Files, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def archive(files: Files, *entries: dict[str, Any], **changes: Any) -> bytes:
    return tar({"oci-layout": LAYOUT, "index.json": index(*entries), **files}, **changes)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], ImageLayout]:
    def open_layout(content: bytes) -> ImageLayout:
        path = tmp_path / "image.tar"
        path.write_bytes(content)
        return ImageLayout(path)

    return open_layout


def architecture_of(manifest: bytes) -> str:
    return str(json.loads(manifest)["for"])


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_only_image_is_taken_whatever_it_is_for(opened, tar_format) -> None:
    files: Files = {f"some/other/{'x' * 90}.json": b"{}", f"{'d/' * 60}{'y' * 150}": b"long"}
    if tar_format == tarfile.USTAR_FORMAT:
        files = {}
    entry = image(files, "arm64")
    with opened(archive(files, entry, tar_format=tar_format)) as layout:
        assert architecture_of(layout.image_manifest("amd64")) == "arm64"
        with pytest.raises(ImageMissing):
            layout.image_manifest("amd64", exact=True)


@pytest.mark.parametrize("platform", [True, False])
def test_of_several_the_one_for_the_machine_is_taken(opened, platform) -> None:
    files: Files = {}
    entries = [image(files, name, platform=platform) for name in ("amd64", "arm64")]
    attestation = put(files, b"{}", platform={"architecture": "unknown", "os": "unknown"})
    nested = put(files, index(*entries, attestation), DOCKER_INDEX)
    with opened(archive(files, nested)) as layout:
        assert architecture_of(layout.image_manifest("arm64")) == "arm64"
        with pytest.raises(ImageMissing) as failure:
            layout.image_manifest("ppc64le")
        assert failure.value.context == ("- amd64", "- arm64")


def test_of_two_for_one_machine_one_must_be_named(opened) -> None:
    files: Files = {}
    entries = [image(files, annotations={NAME: name}) for name in ("one", "two")]
    with opened(archive(files, *entries)) as layout:
        with pytest.raises(UsageError) as failure:
            layout.image_manifest("amd64")
        assert failure.value.context == ("one amd64", "two amd64")
        assert "two" in json.loads(layout.image_manifest("amd64", "two"))["more"]
        with pytest.raises(ImageMissing):
            layout.image_manifest("amd64", "three")


def linked(kind: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as out:
        member = tarfile.TarInfo("index.json")
        member.type, member.linkname = kind, "/etc/passwd"
        out.addfile(member)
    return stream.getvalue()


def with_size(claimed: bytes) -> bytes:
    """An archive whose first header claims another size."""
    content = bytearray(archive({}))
    content[124:136] = claimed.ljust(12, b"\0")
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    return bytes(content)


def pax(records: bytes) -> bytes:
    """An archive that begins with a pax header of these records."""
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, len(records)
    return (
        member.tobuf(tarfile.USTAR_FORMAT) + records.ljust(-(-len(records) // 512) * 512, b"\0") + archive({})
    )


REFUSED: dict[str, tuple[bytes, type[MlbundleError], str]] = {
    "empty": (b"", NotABundle, "no tar"),
    "no tar": (b"PK\3\4" * 300, NotABundle, "no tar"),
    "compressed": (b"\x1f\x8b" + bytes(600), NotABundle, "no tar"),
    "no layout": (tar({"manifest.json": b"[]"}), NotABundle, "no OCI image layout"),
    "no index": (tar({"oci-layout": LAYOUT}), NotABundle, "no OCI image layout"),
    "another version": (
        tar({"oci-layout": b'{"imageLayoutVersion":"2"}', "index.json": b"{}"}),
        BundleCorrupt,
        "1.0.0",
    ),
    "leaves": (archive({"blobs/../../x": b""}), UnsafePath, "leaves the archive"),
    "absolute": (archive({"/blobs/x": b""}), UnsafePath, "leaves the archive"),
    "twice": (archive({"./index.json": b"{}"}), BundleCorrupt, "stands twice"),
    "symbolic link": (linked(tarfile.SYMTYPE), BundleCorrupt, "neither"),
    "hard link": (linked(tarfile.LNKTYPE), BundleCorrupt, "neither"),
    "device": (linked(tarfile.CHRTYPE), BundleCorrupt, "neither"),
    "cut short": (archive({"x": bytes(5000)})[:3000], BundleCorrupt, "ends before"),
    "claims too much": (with_size(b"77777777777"), BundleCorrupt, "ends before"),
    "negative": (with_size(b"\xff" * 12), BundleCorrupt, "negative size"),
    "pax size": (pax(b"20 size=99999999999\n"), BundleCorrupt, "ends before"),
    "pax nonsense": (pax(b"99 path=x\n"), BundleCorrupt, "broken pax"),
    "pax sparse": (pax(b"22 GNU.sparse.major=1\n"), BundleCorrupt, "sparse"),
    "pax too long": (pax(b"x" * 100_000), BundleCorrupt, "over the cap"),
    "pax leaves": (pax(b"16 path=../../x\n"), UnsafePath, "leaves the archive"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_archive_that_plays_tricks_is_refused(opened, name) -> None:
    content, expected, words = REFUSED[name]
    with pytest.raises(expected, match=words) as failure:
        opened(content)
    assert "image.tar" in (failure.value.where or "")


def test_no_file_is_said_so(tmp_path) -> None:
    for path in (tmp_path / "none.tar", tmp_path):
        with pytest.raises(ReferenceNotFound):
            ImageLayout(path)


def test_documents_are_held_against_their_digests(opened) -> None:
    files: Files = {}
    entry = image(files)
    blob = f"blobs/sha256/{entry['digest'][7:]}"
    forged = {**files, blob: files[blob].replace(b"amd64", b"arm64")}
    with opened(archive(forged, entry)) as layout, pytest.raises(DigestMismatch):
        layout.image_manifest("amd64")
    with opened(archive({}, entry)) as layout, pytest.raises(BundleCorrupt, match="not in the archive"):
        layout.image_manifest("amd64")
    with opened(archive(files, {**entry, "size": 5})) as layout, pytest.raises(BundleCorrupt):
        layout.image_manifest("amd64")
    with opened(archive(files, {**entry, "size": 1 << 40})) as layout, pytest.raises(BundleCorrupt):
        layout.image_manifest("amd64")


def test_indexes_in_indexes_have_an_end(opened) -> None:
    files: Files = {}
    entry = image(files)
    for _ in range(4):
        entry = put(files, index(entry), INDEX)
    with opened(archive(files, entry)) as layout, pytest.raises(BundleCorrupt, match="nested"):
        layout.image_manifest("amd64")


@given(st.data())
def test_any_damage_is_a_typed_error_or_none(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    files: Files = {}
    content = bytearray(archive(files, image(files)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.tar"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        with ImageLayout(path) as layout:
            assert architecture_of(layout.image_manifest("amd64")) == "amd64"
    except MlbundleError:
        return


def test_labels_come_from_the_config() -> None:
    config = {"architecture": "x86_64", "config": {"Labels": {"a": "b", "c": 1}}}
    assert config_labels(as_json(config)) == ("amd64", {"a": "b"})
    assert config_labels(as_json({"architecture": "arm64", "config": {"Labels": None}})) == ("arm64", {})
    with pytest.raises(BundleCorrupt):
        config_labels(as_json({"config": {}}))
