"""Nothing is accepted silently: a bundle cut at every length, and with every one of its bytes changed, is refused.

The bundle has every kind of part: weights, labels, code, a compressed group, an embedded image, a signature. The
broken ones are opened and read by the functions of the library that `verify` calls, in memory; some of them go through
`verify` itself. All of the about 200,000 take a while: each time every fourth of them is tried, beginning with another
one; `MLBUNDLE_TEST_EVERY_OFFSET=1` tries them all. Steps that never look at a changed byte would do what they did
with the whole bundle, so they are not repeated: which bytes each step looks at is watched.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundle_forge import CODE, LABELS, WEIGHT, Forge, Image, compact, frame, sha256, tar
from bundle_forge import member as tar_member

from mlbundle.bundle.assemble import with_referrers, write_archive
from mlbundle.bundle.reader import BundleReader, open_archive, open_bundle
from mlbundle.bundle.verify import Copier, verify
from mlbundle.errors import BundleCorrupt, IntegrityError

STEP = 1 if os.environ.get("MLBUNDLE_TEST_EVERY_OFFSET") else 4
STEP_OF_VERIFY = 307


def noise(name: str, size: int) -> bytes:
    return hashlib.shake_256(name.encode()).digest(size)


def small_image() -> Image:
    layers = [tar([tar_member(f"opt/{name}", noise(name, 7000))]) for name in ("one", "two")]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + sha256(layer) for layer in layers]},
    }
    kind = "application/vnd.oci.image.layer.v1.tar"
    return Image(compact(config), [(kind, layers[0]), (kind + "+zstd", frame(layers[1]))])


def make(folder: Path) -> bytes:
    """A bundle of about 100 KB with every kind of part, signed by the library."""
    from mlbundle.runs.attesting import label_of, subject_of
    from mlbundle.signing import keys, sigstore

    forge = Forge(
        raw=[
            ("model.onnx", WEIGHT, noise("weights", 30_000)),
            ("labels.txt", LABELS, b"zero\none\n"),
            ("run.py", CODE, b"print('x')\n"),
        ],
        group={f"data/{number}": noise(str(number), 2000) * 2 for number in range(9)},
        compress_group=True,
        modes={"data/3": "0755"},
        images={"cpu": {"amd64": small_image()}},
    )
    (folder / "bare.mlb").write_bytes(forge.build())
    keys.generate(folder / "key", None)
    private = keys.load_private(folder / "key", None)
    with open_bundle(folder / "bare.mlb") as reader:
        signature = sigstore.sign(subject_of(reader), label_of(reader), private)
        write_archive(with_referrers(reader, [(signature.manifest, signature.blobs)]), folder / "whole.mlb")
    return (folder / "whole.mlb").read_bytes()


class Memory:
    """A bundle file in memory, of which only the first `size_bytes` bytes are there."""

    name = "memory"

    def __init__(self, data: memoryview, size_bytes: int) -> None:
        self._data = data[:size_bytes]
        self.size_bytes = size_bytes

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self._data[offset : offset + size_bytes])

    def read_into(self, view: memoryview, offset: int) -> None:
        piece = self._data[offset : offset + len(view)]
        if len(piece) != len(view):
            raise BundleCorrupt("the file ends")
        view[:] = piece

    def close(self) -> None:
        pass


class Watched(Memory):
    """A whole bundle file of which is noted who looked at which bytes: `looked` has a line for each step."""

    def __init__(self, data: memoryview) -> None:
        super().__init__(data, len(data))
        self.looked: list[bytearray] = []

    def begin(self) -> None:
        """From now on the next step reads."""
        self.looked.append(bytearray(self.size_bytes))

    def _note(self, offset: int, size_bytes: int) -> None:
        size_bytes = max(0, min(size_bytes, self.size_bytes - offset))
        self.looked[-1][offset : offset + size_bytes] = b"\1" * size_bytes

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        self._note(offset, size_bytes)
        return super().read_at(offset, size_bytes)

    def read_into(self, view: memoryview, offset: int) -> None:
        self._note(offset, len(view))
        super().read_into(view, offset)


class Current:
    """The blobs of whichever bundle is looked at, so that one copier with its buffers serves all."""

    name = "memory"
    reader: BundleReader

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        self.reader.source.read_into(hexadecimal, view, offset)

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        return self.reader.source.where(hexadecimal, offset)


class Checker:
    """Opens a bundle and reads every blob of it, as `verify` does."""

    def __init__(self) -> None:
        self._current = Current()
        self._copier = Copier(self._current, lambda _: None)  # type: ignore[arg-type]

    def check(self, file: Memory) -> None:
        for step in self.steps(file):
            step()

    def steps(self, file: Memory) -> Iterator[Callable[[], None]]:
        """Open a bundle, and yield what reads each of its parts."""
        reader = self._current.reader = open_archive(file)
        left = reader.structure.blobs()
        for layer in reader.layers:
            yield partial(self._layer, layer)
            left.pop(layer.hex, None)
        for hexadecimal, size_bytes in left.items():
            yield partial(self._copier.copy_blob, hexadecimal, size_bytes, "a blob")

    def _layer(self, layer: Any) -> None:
        self._copier.copy_layer(layer, iter([None] * len(layer.files)))


def changes(size: int) -> bytes:
    """What every byte is changed by: anything but zero, the same in every run."""
    return bytes(value or 0x80 for value in noise("changes", size))


def flipped(data: bytes, start: int, stop: int, step: int) -> tuple[Counter[str], list[int]]:
    """Change one byte after the other; return the errors and the offsets that nobody minded.

    A byte that opening looks at makes all steps necessary; any other, those that look at it.
    """
    checker, parts, broken, by = Checker(), Checker(), bytearray(data), changes(len(data))
    view = memoryview(broken)
    whole = Watched(view)
    whole.begin()
    readers = []
    for read in parts.steps(whole):
        whole.begin()
        read()
        readers.append(read)
    opening, *looked = whole.looked
    errors: Counter[str] = Counter()
    accepted = []
    for offset in range(start, stop, step):
        broken[offset] ^= by[offset]
        try:
            if opening[offset]:
                checker.check(Memory(view, len(data)))
            else:
                for read, looks in zip(readers, looked, strict=True):
                    if looks[offset]:
                        read()
            accepted.append(offset)
        except IntegrityError as error:
            errors[type(error).__name__] += 1
        broken[offset] ^= by[offset]
    checker.check(Memory(view, len(data)))
    return errors, accepted


def truncated(data: bytes, start: int, stop: int, step: int) -> tuple[Counter[str], list[int]]:
    """Cut at one length after the other; return the errors and the lengths that nobody minded."""
    checker, view = Checker(), memoryview(data)
    errors: Counter[str] = Counter()
    accepted = []
    for size in range(start, stop, step):
        try:
            checker.check(Memory(view, size))
            accepted.append(size)
        except IntegrityError as error:
            errors[type(error).__name__] += 1
    return errors, accepted


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("offsets"))


def everywhere(work: Any, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Do the work for the offsets of this time, and say what came of it."""
    first = secrets.randbelow(STEP)
    errors, accepted = work(data, first, len(data), STEP)
    with capsys.disabled():
        print(f"\n{work.__name__}: from {first} each {STEP}: {errors.total()} refused: {dict(errors)}")
    assert accepted == []
    assert errors.total() == len(range(first, len(data), STEP))


@pytest.mark.attack(11)
def test_cut_at_every_length(whole: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    everywhere(truncated, whole, capsys)


@pytest.mark.attack(10)
def test_every_byte_changed(whole: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    everywhere(flipped, whole, capsys)


@pytest.mark.attack(10)
def test_verify_itself_on_some_of_them(whole: bytes, tmp_path: Path) -> None:
    """The short way above refuses what `verify` refuses."""
    path = tmp_path / "x.mlb"
    path.write_bytes(whole)
    verify(path)
    with path.open("r+b", buffering=0) as file:
        for offset in range(0, len(whole), STEP_OF_VERIFY):
            os.pwrite(file.fileno(), bytes([whole[offset] ^ changes(len(whole))[offset]]), offset)
            with pytest.raises(IntegrityError):
                verify(path)
            os.pwrite(file.fileno(), whole[offset : offset + 1], offset)
    verify(path)


def test_the_bundle_has_every_kind_of_part(whole: bytes) -> None:
    assert 80_000 < len(whole) < 120_000
    with open_archive(Memory(memoryview(whole), len(whole))) as reader:
        assert [layer.path for layer in reader.layers if layer.compressed]
        assert len(reader.images[0].layers) == 2
        assert len(reader.referrers) == 1
