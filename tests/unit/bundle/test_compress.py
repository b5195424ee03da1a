"""What is compressed when a bundle is packed, and that everything comes back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from bundle_samples import content, tree

from mlbundle.bundle.compress import PROBE_BYTES, PROBES, probe
from mlbundle.bundle.content import BundleContent, Compression, Role, SourceFile
from mlbundle.bundle.document import CHUNK_BYTES
from mlbundle.bundle.pack import pack, preview
from mlbundle.bundle.plan import make_plan
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.unpack import unpack
from mlbundle.bundle.verify import verify

MIB = 1 << 20
GROUP = "mlbundle/groups/dataset-0000.tar"


def symbols(size_bytes: int, count: int, seed: int = 0) -> bytes:
    """Random bytes of `count` (a power of two) values: they compress to log2(count) / 8 and never below."""
    return random.Random(seed).randbytes(size_bytes).translate(bytes(v & (count - 1) for v in range(256)))


def group(size_bytes: int, count: int) -> BundleContent:
    """A group of files of such bytes."""
    data = symbols(size_bytes, count)
    pieces = [data[start : start + MIB - 1] for start in range(0, size_bytes, MIB - 1)]
    return content(*(SourceFile(f"data/{n:03}.bin", Role.DATASET, piece) for n, piece in enumerate(pieces)))


def weights(*files: SourceFile, asked: bool) -> BundleContent:
    return content(*files, compression=Compression(weights=asked))


def kinds(found: BundleContent) -> dict[str, str]:
    """What `pack` makes of each layer that holds no document."""
    return {layer.path: layer.media_type.rpartition(".v1.")[2] for layer in preview(found).layers[2:]}


@pytest.mark.parametrize(
    ("size_bytes", "count", "kind", "why"),
    [
        (8 * MIB, 8, "tar+zstd", "five of eight mebibytes are saved"),
        (8 * MIB, 256, "tar", "random bytes do not shrink"),
        (6 * MIB, 8, "tar", "under four mebibytes are saved"),
        (3 * MIB, 2, "tar", "it is too small to save four mebibytes"),
        (34 * MIB, 128, "tar", "over four mebibytes are saved, but only an eighth"),
        (8 * MIB, 1, "tar", "what shrinks more than 200 times looks like a bomb to a reader"),
    ],
)
def test_a_group_is_compressed_where_it_pays(size_bytes: int, count: int, kind: str, why: str) -> None:
    assert kinds(group(size_bytes, count)) == {GROUP: kind}, why


def test_nothing_is_compressed_when_that_is_wanted(tmp_path: Path) -> None:
    packable = group(8 * MIB, 8)
    plain = content(*packable.files[2:], compression=Compression(groups=False))
    assert kinds(plain) == {GROUP: "tar"}
    sizes = [pack(c, tmp_path / f"{n}.mlb") for n, c in enumerate((packable, plain))]
    assert sizes[0].size_bytes < sizes[1].size_bytes / 2
    assert sizes[0].set_digest == sizes[1].set_digest
    assert sizes[0].manifest_digest != sizes[1].manifest_digest


def test_a_promising_beginning_is_not_believed() -> None:
    """Half of the group is worth it and half is not: the probe looks everywhere."""
    mixed = [symbols(MIB - 1, 2, n) if n < 4 else random.Random(n).randbytes(MIB - 1) for n in range(16)]
    files = [SourceFile(f"data/{n:02}.bin", Role.DATASET, data) for n, data in enumerate(mixed)]
    assert kinds(content(*files)) == {GROUP: "tar"}


def test_samples_are_spread_from_the_first_byte_to_the_last(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(5 * MIB)
    (tmp_path / "b").write_bytes(data[MIB // 2 : MIB])
    cuts = [
        data[: MIB // 2],
        tmp_path / "b",
        *(data[n * MIB // 2 : (n + 1) * MIB // 2] for n in range(2, 10)),
    ]
    files = [SourceFile(f"data/{n}.bin", Role.DATASET, part) for n, part in enumerate(cuts)]
    samples = list(probe(make_plan(content(*files)).layers[-1]))
    assert [len(sample) for sample in samples] == [PROBE_BYTES] * PROBES
    places = [data.index(sample) for sample in samples]
    assert (places[0], places[-1]) == (0, len(data) - PROBE_BYTES)
    steps = {after - before for before, after in zip(places, places[1:], strict=False)}
    assert max(steps) - min(steps) <= 1


def test_weights_are_compressed_only_on_request() -> None:
    file = SourceFile("net.onnx", Role.WEIGHT, symbols(100_000, 16))
    assert kinds(weights(file, asked=False)) == {"net.onnx": "raw"}
    assert kinds(weights(file, asked=True)) == {"net.onnx": "tar+zstd"}


@pytest.mark.parametrize(
    "file",
    [
        SourceFile("random.onnx", Role.WEIGHT, random.Random(0).randbytes(100_000)),
        SourceFile("empty.onnx", Role.WEIGHT, b""),
        SourceFile("zeros.onnx", Role.WEIGHT, bytes(2 * MIB)),
        SourceFile("n" * 120, Role.WEIGHT, symbols(100_000, 16)),
        SourceFile("labels.txt", Role.CONFIG, symbols(100_000, 16)),
        SourceFile("large.bin", Role.DATASET, symbols(2 * MIB, 16)),
    ],
    ids=lambda file: file.path[:8],
)
def test_what_stays_as_it_is_even_on_request(file: SourceFile) -> None:
    """What does not shrink, what looks like a bomb, what no tar can name, and what is no weight."""
    assert kinds(weights(file, asked=True)) == {file.path: "raw"}


def test_a_preview_has_the_digests_of_the_bundle_and_everything_comes_back(tmp_path: Path) -> None:
    sources = {file.path: file.source for file in group(8 * MIB, 4).files[2:]} | {
        "net.onnx": symbols(100_000, 16)
    }
    files = [
        SourceFile(path, Role.WEIGHT if path == "net.onnx" else Role.DATASET, data)
        for path, data in sources.items()
    ]
    wanted = weights(*files, asked=True)
    expected = preview(wanted)
    packed = pack(wanted, tmp_path / "t.mlb")
    assert [path.name for path in tmp_path.iterdir()] == ["t.mlb"]
    assert (packed.manifest_digest, packed.config_digest, packed.set_digest, packed.size_bytes) == (
        expected.manifest_digest,
        expected.config_digest,
        expected.set_digest,
        expected.size_bytes,
    )
    assert packed.size_bytes == (tmp_path / "t.mlb").stat().st_size < 3 * MIB
    with open_bundle(tmp_path / "t.mlb") as reader:
        assert [layer.compressed for layer in reader.layers[4:]] == [True, True]
    assert verify(tmp_path / "t.mlb").manifest_digest == packed.manifest_digest
    unpack(tmp_path / "t.mlb", tmp_path / "out")
    found = tree(tmp_path / "out")
    assert {path: found[path] for path in sources} == sources


def test_a_large_layer_has_chunks_of_what_is_stored(tmp_path: Path) -> None:
    """Over 64 MiB compressed: the chunks are of the blob, as it is transferred."""
    (tmp_path / "large.onnx").write_bytes(symbols(90 * MIB, 64))
    file = SourceFile("large.onnx", Role.WEIGHT, tmp_path / "large.onnx")
    pack(weights(file, asked=True), tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        (chunks,) = reader.document.chunks
        layer = reader.layers[4]
        assert layer.compressed
        assert (chunks.path, len(chunks.sha256)) == ("large.onnx", 2)
        assert CHUNK_BYTES < layer.size_bytes < 90 * MIB
    verify(tmp_path / "t.mlb")
