"""An open bundle written as a file again, with more attached to it or with fewer images."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from bundle_samples import content, tiny
from image_samples import Image, Note, hex_of, with_images

from mlbundle.bundle import output
from mlbundle.bundle.archive import ArchiveBlobs
from mlbundle.bundle.assemble import with_images as keep_images
from mlbundle.bundle.assemble import with_referrers, write_archive
from mlbundle.bundle.content import BundleContent, Compression, Role, SourceFile
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import BundleReader, open_blobs, open_bundle
from mlbundle.bundle.unpack import unpack
from mlbundle.bundle.verify import verify
from mlbundle.errors import BundleCorrupt, DigestMismatch, StorageFailed, UsageError


def compressed() -> BundleContent:
    few_symbols = random.Random(0).randbytes(100_000).translate(bytes(v & 7 for v in range(256)))
    return content(SourceFile("net.onnx", Role.WEIGHT, few_symbols), compression=Compression(weights=True))


def packed(found: BundleContent, folder: Path) -> Path:
    return pack(found, folder / "t.mlb").path


def note(reader: BundleReader, text: bytes = b"a note") -> Note:
    return Note((reader.manifest_digest, len(reader.manifest_bytes)), text)


def attach(reader: BundleReader, *notes: Note) -> BundleReader:
    return with_referrers(reader, [(one.manifest, one.blobs) for one in notes])


@pytest.mark.parametrize(
    "found",
    [tiny(), compressed(), with_images(Image("cpu", ("amd64", "arm64")), Image("cuda"))],
    ids=["plain", "compressed", "images"],
)
def test_what_is_written_again_is_the_same_file(found: BundleContent, tmp_path: Path) -> None:
    original = packed(found, tmp_path)
    seen: list[tuple[int, int]] = []
    with open_bundle(original) as reader:
        write_archive(reader, tmp_path / "again.mlb", lambda done, total: seen.append((done, total)))
    assert (tmp_path / "again.mlb").read_bytes() == original.read_bytes()
    assert seen[-1][0] == seen[-1][1] > 0


def test_the_order_in_the_source_does_not_matter(tmp_path: Path) -> None:
    """A bundle whose blobs come from elsewhere, in any order, is written as `pack` writes it."""
    original = packed(with_images(Image()), tmp_path)
    with open_bundle(original) as reader:
        blobs = {
            key: reader.source.read_at(key, 0, size)
            for key, size in reversed(reader.structure.blobs().items())
        }
        index = reader.index_bytes
    with open_blobs(MemoryBlobs(blobs), index) as reader:
        write_archive(reader, tmp_path / "again.mlb")
    assert (tmp_path / "again.mlb").read_bytes() == original.read_bytes()


def test_what_exists_is_replaced_only_on_request(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    with open_bundle(packed(tiny(), tmp_path)) as reader:
        with pytest.raises(UsageError, match="exists"):
            write_archive(reader, target)
        assert target.read_bytes() == b"precious"
        write_archive(reader, target, overwrite=True)
        with pytest.raises(UsageError):
            write_archive(reader, tmp_path / "nowhere" / "t.mlb")
    assert verify(target).name == "tiny"


def test_a_bundle_may_be_written_over_the_file_that_it_is_read_from(tmp_path: Path) -> None:
    path = packed(tiny(), tmp_path)
    with open_bundle(path) as reader:
        write_archive(attach(reader, note(reader)), path, overwrite=True)
        digest = reader.manifest_digest
    assert verify(path).manifest_digest == digest
    assert [p.name for p in tmp_path.iterdir()] == ["t.mlb"]


def test_damage_is_found_while_it_is_copied_and_nothing_is_written(tmp_path: Path) -> None:
    path = packed(tiny(), tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"weights weights") + 100] ^= 1
    path.write_bytes(data)
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    with open_bundle(path) as reader, pytest.raises(DigestMismatch):
        write_archive(reader, target, overwrite=True)
    assert target.read_bytes() == b"precious"
    assert {p.name for p in tmp_path.iterdir()} == {"t.mlb", "precious"}


def test_a_full_disk_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tiny(), tmp_path)
    monkeypatch.setattr(output, "free_bytes", lambda _folder: 100)
    with open_bundle(path) as reader, pytest.raises(StorageFailed, match="free"):
        write_archive(reader, tmp_path / "again.mlb")
    assert [p.name for p in tmp_path.iterdir()] == ["t.mlb"]


def test_referrers_are_added_and_the_model_stays_what_it_is(tmp_path: Path) -> None:
    path = packed(with_images(Image()), tmp_path)
    with open_bundle(path) as reader:
        one, two = note(reader, b"one"), note(reader, b"two")
        write_archive(attach(reader, one, two), tmp_path / "both.mlb")
        write_archive(attach(attach(reader, two), one), tmp_path / "turns.mlb")
        write_archive(attach(attach(reader, one, two), one), tmp_path / "twice.mlb")
        before = (reader.manifest_digest, reader.set_digest)
    both = (tmp_path / "both.mlb").read_bytes()
    assert (tmp_path / "turns.mlb").read_bytes() == both
    assert (tmp_path / "twice.mlb").read_bytes() == both
    with open_bundle(tmp_path / "both.mlb") as reader:
        assert (reader.manifest_digest, reader.set_digest) == before
        assert {r.manifest.hex for r in reader.referrers} == {hex_of(one.manifest), hex_of(two.manifest)}
        assert len(reader.images) == 1
    assert verify(tmp_path / "both.mlb").manifest_digest == before[0]
    unpack(tmp_path / "both.mlb", tmp_path / "out")


def test_what_is_about_another_bundle_is_not_attached(tmp_path: Path) -> None:
    with open_bundle(packed(tiny(), tmp_path)) as reader:
        foreign = Note((f"sha256:{'0' * 64}", 7))
        with pytest.raises(BundleCorrupt, match="another manifest"):
            attach(reader, foreign)
        sound = note(reader)
        with pytest.raises(BundleCorrupt, match="missing"):
            with_referrers(reader, [(sound.manifest, {})])


def test_images_can_be_left_out(tmp_path: Path) -> None:
    cpu, cuda = Image("cpu"), Image("cuda", ("amd64", "arm64"))
    path = packed(with_images(cpu, cuda), tmp_path)
    with open_bundle(path) as reader:
        everything = attach(reader, note(reader))
        write_archive(keep_images(everything, ["cuda"]), tmp_path / "cuda.mlb")
        write_archive(keep_images(everything, []), tmp_path / "none.mlb")
        write_archive(keep_images(reader, ["cpu", "cuda", "unknown"]), tmp_path / "all.mlb")
        digest, pins = reader.manifest_digest, reader.document.images
    assert (tmp_path / "all.mlb").read_bytes() == path.read_bytes()
    shared = {hex_of(layer) for layer in cuda.layers}
    gone = {key for key in cpu.blobs if key not in cuda.blobs and key not in shared}
    for name, images in (("cuda", ["cuda"]), ("none", [])):
        with open_bundle(tmp_path / f"{name}.mlb") as reader:
            assert [image.accelerator for image in reader.images] == images
            # The framework table is part of the model: it says what fits, embedded or not.
            assert (reader.manifest_digest, reader.document.images) == (digest, pins)
            assert len(reader.referrers) == 1
            assert isinstance(reader.source, ArchiveBlobs)
            assert all(reader.source.size_of(key) is None for key in gone)
        verify(tmp_path / f"{name}.mlb")
