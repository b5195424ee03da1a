"""Compressed layers from strangers: bombs, windows, dictionaries, other frames, other tars than the table's."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_cases import Case, Cases, refuse, run
from bundle_forge import (
    DATASET,
    GROUP,
    GROUP_PATH,
    LABELS,
    WEIGHT,
    WEIGHT_ZSTD,
    Forge,
    frame,
    header,
    member,
    sha256,
    tar,
)

CASES = Cases()
case, add = CASES.case, CASES.put

MAGIC = b"\x28\xb5\x2f\xfd"
RAW, RLE, RESERVED = 0, 1, 3
BLOCK = 128 << 10
WINDOW_8_MIB = 13 << 3


def block(kind: int, size: int, data: bytes, *, last: bool = False) -> bytes:
    return (last | kind << 1 | size << 3).to_bytes(3, "little") + data


def raw_frame(data: bytes, *, head: bytes = bytes([0, WINDOW_8_MIB])) -> bytes:
    """A frame by RFC 8878 without compression; `head` is what follows the magic number."""
    pieces = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)] or [b""]
    blocks = [
        block(RAW, len(piece), piece, last=number == len(pieces)) for number, piece in enumerate(pieces, 1)
    ]
    return MAGIC + head + b"".join(blocks)


def zeros_frame(count: int, *, head: bytes = bytes([0, WINDOW_8_MIB])) -> bytes:
    """A frame of `count` blocks of 128 KiB of zeros, four bytes each."""
    return MAGIC + head + block(RLE, BLOCK, b"\0") * (count - 1) + block(RLE, BLOCK, b"\0", last=True)


def skippable(data: bytes = b"anything") -> bytes:
    return b"\x5a\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


def compressed(**values: Any) -> Forge:
    return Forge(compress_group=True, **values)


def framed(build: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """A bundle whose group is compressed by `build`, which gets the tar that is right."""

    def make() -> bytes:
        held: list[bytes] = []

        def keep(data: bytes) -> bytes:
            held.append(data)
            return data

        return compressed(edit_tar=keep, edit_frame=lambda _: build(held[0])).build()

    return make


def wrapped(build: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """A bundle whose group is compressed and then changed by `build`."""
    return lambda: compressed(edit_frame=build).build()


def content_size(size: int) -> bytes:
    """A frame header of a single segment that states a content size of eight bytes."""
    return bytes([0b1110_0000]) + size.to_bytes(8, "little")


def with_window(exponent: int, mantissa: int) -> Callable[[bytes], bytes]:
    return lambda data: raw_frame(data, head=bytes([0, (exponent - 10) << 3 | mantissa]))


SIZE = len(tar([member("data/a.bin", b"A" * 700), member("data/b.bin", b"B")]))

FRAMES: dict[str, Callable[[bytes], bytes]] = {
    "window_of_2_gib": with_window(31, 0),
    "window_of_9_mib": with_window(23, 1),
    "window_of_3_tib": with_window(41, 7),
    "dictionary_of_one_byte": lambda data: raw_frame(data, head=bytes([1, WINDOW_8_MIB, 7])),
    "dictionary_of_two_bytes": lambda data: raw_frame(data, head=bytes([2, WINDOW_8_MIB, 7, 0])),
    "dictionary_of_four_bytes": lambda data: raw_frame(data, head=bytes([3, WINDOW_8_MIB, 7, 0, 0, 0])),
    "dictionary_of_number_zero": lambda data: raw_frame(data, head=bytes([1, WINDOW_8_MIB, 0])),
    "reserved_bit": lambda data: raw_frame(data, head=bytes([8, WINDOW_8_MIB])),
    "content_size_too_large": lambda data: raw_frame(data, head=content_size(len(data) + 1)),
    "content_size_too_small": lambda data: raw_frame(data, head=content_size(len(data) - 1)),
    "content_size_of_2_63": lambda data: raw_frame(data, head=content_size(1 << 63)),
    "content_size_zero": lambda data: raw_frame(data, head=content_size(0)),
    "content_size_right_and_more_follows": lambda data: raw_frame(data + b"!", head=content_size(len(data))),
    "content_size_right_and_less_follows": lambda data: raw_frame(data[:-1], head=content_size(len(data))),
    "reserved_block": lambda data: (
        MAGIC + bytes([0, WINDOW_8_MIB]) + block(RAW, 99, data[:99]) + block(RESERVED, 1, b"x", last=True)
    ),
    "block_over_the_window": lambda data: (
        MAGIC + bytes([0, 0]) + block(RAW, len(data), data + bytes(2000), last=True)
    ),
    "no_last_block": lambda data: MAGIC + bytes([0, WINDOW_8_MIB]) + block(RAW, len(data), data),
    "raw_tar": lambda data: data,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "older_zstd": lambda data: b"\x27" + raw_frame(data)[1:],
    "frame_of_few_bytes": lambda data: raw_frame(data[:20]),
    "two_frames_of_half": lambda data: raw_frame(data[:1024]) + raw_frame(data[1024:]),
}
for label, build in FRAMES.items():
    add(label, 13, framed(build), seen_by_inspect=False)

AROUND: dict[str, Callable[[bytes], bytes]] = {
    "skippable_before": lambda data: skippable() + data,
    "skippable_after": lambda data: data + skippable(),
    "skippable_of_4_gib": lambda data: b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + data,
    "skippable_only": skippable,
    "skippable_between": lambda data: raw_frame(b"") + skippable() + data,
    "frame_twice": lambda data: data * 2,
    "empty_frame_before": lambda data: raw_frame(b"") + data,
    "empty_frame_after": lambda data: data + raw_frame(b""),
    "trailing_byte": lambda data: data + b"\0",
    "trailing_zeros": lambda data: data + bytes(512),
    "cut_by_a_byte": lambda data: data[:-1],
    "cut_in_half": lambda data: data[: len(data) // 2],
    "only_the_magic_number": lambda data: MAGIC + bytes(20),
}
for label, build in AROUND.items():
    add(label, 13, wrapped(build), seen_by_inspect=False)


@case(13, seen_by_inspect=False)
def checksum_wrong() -> bytes:
    def build(data: bytes) -> bytes:
        good = frame(data, checksum_flag=1)
        return good[:-1] + bytes([good[-1] ^ 1])

    return framed(build)()


add("empty_blob", 13, wrapped(lambda _: b""))
add("empty_frame", 13, wrapped(lambda _: raw_frame(b"")))
add("cut_in_the_header", 13, wrapped(lambda data: data[:5]))


# Bombs: what the table says decides, and nothing more is ever decompressed.
add("gib_of_zeros_for_a_small_group", 12, wrapped(lambda _: zeros_frame(8192)), seen_by_inspect=False)
add(
    "gib_of_zeros_that_states_a_small_size",
    12,
    wrapped(lambda _: zeros_frame(8192, head=content_size(SIZE))),
    seen_by_inspect=False,
)


@case(12)
def bomb_that_the_table_states() -> bytes:
    """The table is honest about 40 MiB of zeros in a frame of some kB."""
    return compressed(group={"data/a.bin": bytes(40 << 20)}).build()


@case(12)
def weights_that_are_a_bomb() -> bytes:
    return Forge(raw=[("model.onnx", WEIGHT_ZSTD, bytes(40 << 20))], group={}).build()


@case(12, seen_by_inspect=False)
def bomb_just_below_the_ratio() -> bytes:
    """Stated are 6 MiB in 32 KiB; the frame would make a gigabyte."""
    return compressed(group={"data/a.bin": bytes(6 << 20)}, edit_frame=lambda _: zeros_frame(8192)).build()


@case(12)
def group_over_the_cap_once_decompressed() -> bytes:
    noise = hashlib.shake_256(b"noise").digest(400 << 10)
    return compressed(group={"data/a.bin": noise + bytes(64 << 20)}).build()


@case(12)
def one_frame_for_a_thousand_files() -> bytes:
    """The same blob stands for many weights, each of which is within the ratio."""
    raw = [(f"w{number:03d}.bin", WEIGHT_ZSTD, bytes(400_000)) for number in range(200)]
    return Forge(raw=raw, group={}, assets=[], edit_frame=lambda _: bytes(2100)).build()


def one_frame_for_two(right: str) -> Callable[[], bytes]:
    """One blob stands for the weights a and b, and it is the tar of only one of them."""
    raw = [(path, WEIGHT_ZSTD, b"weights " * 40) for path in ("a.onnx", "b.onnx")]
    blob = frame(tar([member(right, raw[0][2])]))
    wrong = "sha256:" + sha256(tar([member(right, raw[0][2])]))

    def edit(document: Any) -> None:
        document["modelfs"]["diffIds"][4:6] = [wrong, wrong]

    return lambda: Forge(raw=raw, group={}, assets=[], edit_frame=lambda _: blob, edit_config=edit).build()


for name in ("a.onnx", "b.onnx"):
    add(f"one_frame_for_two_files_right_for_{name[0]}", 5, one_frame_for_two(name))

# The tar inside is another than the table's; once the diff id is that of the right tar, once that of the wrong one.
A, B = member("data/a.bin", b"A" * 700), member("data/b.bin", b"B")
TARS: dict[str, list[bytes]] = {
    "longer": [A, B, member("data/c.bin", b"C")],
    "shorter": [A],
    "no_members": [],
    "other_order": [B, A],
    "other_name": [A, member("data/c.bin", b"B")],
    "name_outside": [A, member("../b.bin", b"B")],
    "symlink": [A, header("data/b.bin", 0, kind=b"2", link=b"/etc/passwd")],
    "hardlink": [A, header("data/b.bin", 0, kind=b"1", link=b"data/a.bin")],
    "fifo": [A, header("data/b.bin", 0, kind=b"6")],
    "setuid": [A, member("data/b.bin", b"B", mode=0o4755)],
    "executable": [A, member("data/b.bin", b"B", mode=0o755)],
    "time": [A, member("data/b.bin", b"B", mtime=1)],
    "twice": [A, A, B],
    "folder_first": [header("data/", 0, kind=b"5", mode=0o755), A, B],
    "pax_size": [A, member("PaxHeaders/size", b"10 size=1\n", kind=b"x"), B],
    "padding": [A, B[:-1] + b"!"],
    "two_archives": [A, B, bytes(1024), A],
    "zeros_behind": [A, B, bytes(512)],
}
for label, members in TARS.items():
    attack = {"symlink": 2, "hardlink": 3, "fifo": 4, "setuid": 4, "executable": 4, "twice": 5}.get(label, 11)
    add(
        f"tar_{label}",
        attack,
        lambda members=members: compressed(edit_group=lambda _: members).build(),
        seen_by_inspect=False,
    )
    add(
        f"tar_{label}_and_another_diff_id",
        attack,
        lambda members=members: compressed(edit_tar=lambda _: tar(members)).build(),
        seen_by_inspect=False,
    )


@case(10, "digest-mismatch", seen_by_inspect=False)
def tar_with_another_file() -> bytes:
    return compressed(edit_group=lambda _: [A, member("data/b.bin", b"C")]).build()


@case(10, "digest-mismatch", seen_by_inspect=False)
def byte_flipped_in_a_frame() -> bytes:
    def flip(data: bytes) -> bytes:
        assert data.count(b"A" * 700) == 1
        return data.replace(b"A" * 700, b"A" * 699 + b"B")

    held: list[bytes] = []
    return compressed(
        edit_tar=lambda data: held.append(data) or data,
        edit_frame=lambda _: raw_frame(held[0]),
        edit_file=flip,
    ).build()


@case(8)
def plain_tar_that_is_called_compressed() -> bytes:
    """Read as a frame it is none; its size alone says nothing."""

    def edit(document: Any) -> None:
        document["layers"][-1]["mediaType"] = GROUP + "+gzip"

    return Forge(edit_manifest=edit).build()


@case(8)
def frame_that_is_called_a_tar() -> bytes:
    def edit(document: Any) -> None:
        document["layers"][-1]["mediaType"] = GROUP

    return compressed(edit_manifest=edit, edit_config=diff_id(-1, None)).build()


def diff_id(index: int, value: Any) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        document["modelfs"]["diffIds"][index] = value or document["modelfs"]["diffIds"][0]

    return edit


for label, value in {
    "other": "sha256:" + "0" * 64,
    "of_an_empty_file": "sha256:" + sha256(b""),
}.items():
    add(
        f"diff_id_{label}",
        10,
        lambda value=value: compressed(edit_config=diff_id(-1, value)).build(),
        seen_by_inspect=False,
    )
for label, value in {
    "path": "sha256:../../../../etc/passwd",
    "sha512": "sha512:" + "a" * 128,
    "upper_case": "sha256:" + "A" * 64,
    "newline": "sha256:" + "a" * 64 + "\n",
}.items():
    add(f"diff_id_{label}", 9, lambda value=value: compressed(edit_config=diff_id(-1, value)).build())


@case(11)
def diff_id_missing() -> bytes:
    def edit(document: Any) -> None:
        document["modelfs"]["diffIds"].pop()

    return compressed(edit_config=edit).build()


@case(12)
def unpacked_size_of_a_compressed_group_lies() -> bytes:
    def edit(document: Any) -> None:
        document["unpacked_size"] = 1

    return compressed(edit_bundle=edit).build()


def typed(path: str, kind: str) -> Callable[[], bytes]:
    return lambda: Forge(raw=[("model.onnx", WEIGHT, b"w"), (path, kind, b"x")], group={}).build()


for label, path, kind in (
    ("labels", "labels.txt", LABELS + "+zstd"),
    ("dataset_file", "data/a.bin", DATASET + "+zstd"),
    ("raw_weights", "z.onnx", WEIGHT + "+zstd"),
    ("weights_in_a_plain_tar", "z.onnx", "application/vnd.cncf.model.weight.v1.tar"),
    ("group_elsewhere", "data/a.tar", GROUP + "+zstd"),
    ("weights_in_the_place_of_a_group", GROUP_PATH, WEIGHT_ZSTD),
):
    add(f"compressed_{label}", 18, typed(path, kind))


@case(18)
def compressed_document() -> bytes:
    def edit(document: Any) -> None:
        document["layers"][0]["mediaType"] += "+zstd"

    return compressed(edit_manifest=edit).build()


@case(11)
def two_files_in_compressed_weights() -> bytes:
    def edit(rows: Any) -> Any:
        next(row for row in rows if row["path"] == "labels.txt")["layer"] = 4
        return rows

    return Forge(
        raw=[("model.onnx", WEIGHT_ZSTD, b"weights " * 40), ("labels.txt", LABELS, b"zero")], edit_table=edit
    ).build()


@pytest.mark.parametrize("broken", CASES.parameters())
def test_broken_compressed_layer_is_refused(
    broken: Case, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(broken, box, capsys)


@pytest.mark.attack(17)
@pytest.mark.parametrize("place", ["group", "weights"])
def test_pickle_in_a_compressed_layer_is_reported(
    place: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = pickle.dumps([1, "x"], protocol=4)
    forge = (
        compressed(group={"data/a.png": bad, "data/b.png": b"\x89PNG\r\n\x1a\n"})
        if place == "group"
        else Forge(raw=[("data/a.png", WEIGHT_ZSTD, bad)], group={}, assets=[])
    )
    (box / "sly.mlb").write_bytes(forge.build())
    assert run(capsys, "verify", "sly.mlb")[1]["pickles"] == ["data/a.png"]


@pytest.mark.attack(12)
def test_a_full_disk_while_layers_are_decompressed(
    box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where decompressed files are kept for a moment there may be no room: that is said as what it is."""

    def full(**_: Any) -> Any:
        return Path("/dev/full").open("r+b", buffering=0)

    monkeypatch.setattr("mlbundle.bundle.verify.tempfile.TemporaryFile", full)
    (box / "x.mlb").write_bytes(compressed().build())
    status, document = run(capsys, "verify", "x.mlb")
    assert (status, document["reference"]) == (3, "storage-failed"), document


SOUND: dict[str, Callable[[bytes], bytes]] = {
    "window_of_8_mib": raw_frame,
    "smallest_window": lambda data: frame(data, window_log=10),
    "content_size": lambda data: raw_frame(data, head=content_size(len(data))),
    "checksum": lambda data: frame(data, checksum_flag=1),
    "high_level": lambda data: frame(data, compression_level=19),
    "many_blocks": lambda data: (
        MAGIC
        + bytes([0, WINDOW_8_MIB])
        + b"".join(block(RAW, 1, data[i : i + 1]) for i in range(len(data) - 1))
        + block(RAW, 1, data[-1:], last=True)
    ),
}


@pytest.mark.parametrize("variant", SOUND)
def test_other_frames_of_the_same_tar_are_accepted(
    variant: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the cases are made of is sound: each is refused for its fault alone."""
    (box / "good.mlb").write_bytes(framed(SOUND[variant])())
    for command in ("inspect", "verify", "unpack"):
        assert run(capsys, command, "good.mlb")[0] == 0
    assert (box / "good" / "data" / "a.bin").read_bytes() == b"A" * 700
    assert (box / "good" / "data" / "b.bin").read_bytes() == b"B"
