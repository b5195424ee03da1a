"""Broken and malicious bundles of the plain format, through the command line.

Every case says which of the attack classes (see conftest.py) it belongs to.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_cases import Case, Cases, refuse, run
from bundle_forge import (
    CODE,
    DATASET,
    GROUP_PATH,
    LABELS,
    WEIGHT,
    Forge,
    compact,
    header,
    member,
    sha256,
    tar,
)

from mlbundle.bundle.reader import open_bundle
from mlbundle.cli.main import main
from mlbundle.errors import NotABundle

CASES = Cases()
case, add = CASES.case, CASES.put


def path_everywhere(path: str) -> bytes:
    """A weights file of this path, the same in the annotation and in the file table."""
    return Forge(raw=[(path, WEIGHT, b"x")]).build()


for label, path in {
    "parent": "../evil",
    "parent_inside": "a/../../evil",
    "absolute": "/tmp/evil",
    "nul": "evil\0.txt",
    "backslash": "..\\evil",
    "drive": "C:evil",
    "newline": "a\nb",
    "dot": "./evil",
    "empty_part": "a//b",
    "device_name": "data/NUL.txt",
    "not_nfc": "cafe\u0301",
    "dots_by_nfkc": "\u2025/evil",
    "long_part": "x" * 256,
    "too_deep": "/".join("d" * 33),
    "long_path": "/".join(["d" * 200] * 6),
    "empty": "",
}.items():
    add(f"path_{label}", 1, lambda path=path: path_everywhere(path), "unsafe-path")


def set_layer(index: int, **values: Any) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        document["layers"][index].update(values)

    return edit


def rename_row(old: str, new: str) -> Callable[[Any], Any]:
    def edit(rows: Any) -> Any:
        for row in rows:
            row["path"] = new if row["path"] == old else row["path"]
        return sorted(rows, key=lambda row: row["path"].encode())

    return edit


@case(1, "unsafe-path")
def traversal_in_file_table_only() -> bytes:
    return Forge(edit_table=rename_row("model.onnx", "../model.onnx")).build()


@case(1, "unsafe-path")
def surrogate_in_file_table() -> bytes:
    def edit(rows: Any) -> bytes:
        return b"".join(compact(row) + b"\n" for row in rows).replace(b'"model.onnx"', b'"\\ud800.onnx"')

    return Forge(edit_table=edit).build()


@case(1, "unsafe-path")
def traversal_in_group() -> bytes:
    return Forge(group={"data/../../evil": b"x"}).build()


@case(1, "unsafe-path")
def traversal_in_asset() -> bytes:
    def edit(document: Any) -> None:
        document["assets"][0]["path"] = "../model.onnx"

    return Forge(edit_bundle=edit).build()


@case(1)
def annotation_differs_from_table() -> bytes:
    annotations = {"org.cncf.model.filepath": "other.onnx", "org.opencontainers.image.title": "other.onnx"}
    return Forge(edit_manifest=set_layer(4, annotations=annotations)).build()


@case(1, "unsafe-path")
def traversal_in_outer_tar() -> bytes:
    return Forge(edit_members=lambda members: [*members, member("../evil", b"x")]).build()


@case(1)
def tar_prefix_field() -> bytes:
    return Forge(edit_members=lambda members: [*members, member("evil", b"x", prefix=b"../..")]).build()


@case(1)
def foreign_member() -> bytes:
    return Forge(edit_members=lambda members: [*members, member("plugin.py", b"x")]).build()


@case(1, "unsafe-path")
def traversal_from_the_blobs() -> bytes:
    return Forge(edit_members=lambda members: [*members, member("blobs/sha256/../../evil", b"x")]).build()


@case(1)
def file_in_reserved_folder() -> bytes:
    return Forge(raw=[("mlbundle/plugin.py", CODE, b"x")]).build()


@case(1, "unsafe-path")
def bytes_after_nul_in_name() -> bytes:
    return Forge(edit_members=lambda members: [*members, member(b"oci-layout\0../evil", b"x")]).build()


for label, kind in {
    "symlink": b"2",
    "hardlink": b"1",
    "character_device": b"3",
    "block_device": b"4",
    "fifo": b"6",
}.items():
    attack = {"symlink": 2, "hardlink": 3}.get(label, 4)
    entry = header("blobs/sha256/" + "a" * 64, 0, kind=kind, link=b"/etc/passwd" if attack < 4 else b"")
    add(
        f"outer_{label}",
        attack,
        lambda entry=entry: Forge(edit_members=lambda members: [*members, entry]).build(),
    )
    held = header("data/a.bin", 0, kind=kind, link=b"../../outside")
    add(
        f"group_{label}",
        attack,
        lambda held=held: Forge(group={"data/a.bin": b""}, edit_group=lambda _: [held]).build(),
        seen_by_inspect=False,
    )


@case(2)
def symlink_then_file_through_it() -> bytes:
    link = header("data", 0, kind=b"2", link=b"/tmp")
    return Forge(edit_group=lambda members: [link, *members]).build()


@case(4, seen_by_inspect=False)
def setuid_mode_in_group() -> bytes:
    return Forge(
        group={"data/a.bin": b"x"}, edit_group=lambda _: [member("data/a.bin", b"x", mode=0o4755)]
    ).build()


@case(4)
def setuid_mode_in_table() -> bytes:
    def edit(rows: Any) -> Any:
        rows[0]["mode"] = "4755"
        return rows

    return Forge(edit_table=edit).build()


@case(4, seen_by_inspect=False)
def mode_differs_between_group_and_table() -> bytes:
    return Forge(
        group={"data/a.bin": b"x"}, edit_group=lambda _: [member("data/a.bin", b"x", mode=0o755)]
    ).build()


@case(4)
def folder_entry() -> bytes:
    return Forge(edit_members=lambda members: [header("blobs/", 0, kind=b"5", mode=0o755), *members]).build()


@case(5)
def duplicate_member() -> bytes:
    return Forge(edit_members=lambda members: [*members, members[1]]).build()


@case(5)
def duplicate_blob_with_other_bytes() -> bytes:
    return Forge(
        edit_members=lambda members: [*members, member(f"blobs/sha256/{sha256(b'weights ' * 40)}", b"other")]
    ).build()


@case(5)
def two_layers_of_one_path() -> bytes:
    return Forge(raw=[("model.onnx", WEIGHT, b"1"), ("model.onnx", LABELS, b"2")]).build()


@case(5)
def duplicate_line_in_table() -> bytes:
    return Forge(edit_table=lambda rows: [rows[0], *rows]).build()


@case(5)
def unlisted_file_in_group() -> bytes:
    return Forge(edit_group=lambda members: [*members, member("data/c.bin", b"c")]).build()


@case(5)
def missing_file_in_group() -> bytes:
    return Forge(edit_group=lambda members: members[:-1]).build()


@case(5)
def group_without_files() -> bytes:
    forge = Forge(
        edit_group=lambda _: [],
        edit_table=lambda rows: [r for r in rows if not r["path"].startswith("data/")],
    )
    return forge.build()


@case(5)
def duplicate_in_group() -> bytes:
    return Forge(edit_group=lambda members: [members[0], *members]).build()


def pax(record: bytes, name: bytes = b"PaxHeaders/size") -> bytes:
    return member(name, record, kind=b"x")


@case(6)
def pax_path() -> bytes:
    return Forge(edit_members=lambda members: [pax(b"20 path=../evil.txt\n"), *members]).build()


@case(6)
def pax_size_against_ustar_size() -> bytes:
    return Forge(edit_members=lambda members: [*members[:-1], pax(b"11 size=99\n"), members[-1]]).build()


@case(6)
def pax_size_twice() -> bytes:
    record = b"20 size=10737418240\n20 size=10737418241\n"
    return Forge(edit_members=lambda members: [*members[:-1], pax(record), members[-1]]).build()


@case(6)
def pax_size_and_ustar_size() -> bytes:
    return Forge(
        edit_members=lambda members: [*members[:-1], pax(b"20 size=10737418240\n"), members[-1]]
    ).build()


@case(6)
def global_pax_header() -> bytes:
    return Forge(edit_members=lambda members: [member("pax", b"11 size=99\n", kind=b"g"), *members]).build()


@case(7)
def gnu_long_name() -> bytes:
    long = member("././@LongLink", b"../" * 100 + b"evil\0", kind=b"L")
    return Forge(edit_members=lambda members: [long, *members]).build()


@case(7)
def gnu_sparse() -> bytes:
    return Forge(
        edit_members=lambda members: [*members, header("blobs/sha256/" + "a" * 64, 0, kind=b"S")]
    ).build()


@case(7)
def huge_pax_header() -> bytes:
    return Forge(edit_members=lambda members: [pax(b"9" * (2 << 20)), *members]).build()


@case(7)
def gnu_magic() -> bytes:
    return Forge(
        edit_members=lambda members: [
            *members,
            member("blobs/sha256/" + sha256(b"x"), b"x", magic=b"ustar  \0"),
        ]
    ).build()


@case(7)
def header_checksum() -> bytes:
    def edit(data: bytes) -> bytes:
        return data[: 1024 + 148] + b"000000\0 " + data[1024 + 156 :]

    return Forge(edit_file=edit).build()


@case(7)
def time_in_header() -> bytes:
    return Forge(
        edit_members=lambda members: [*members, member("blobs/sha256/" + sha256(b"x"), b"x", mtime=1)]
    ).build()


@case(7)
def data_in_padding() -> bytes:
    return Forge(edit_members=lambda members: [members[0][:-1] + b"!", *members[1:]]).build()


for label, size_field in {
    "base256": b"\x80" + bytes(10) + b"\x05",
    "negative": b"\xff" * 12,
    "minus": b"-0000000005\0",
    "spaces": b"          5\0",
    "huge": b"77777777777\0",
    "no_end": b"000000000005",
}.items():
    forged = header("blobs/sha256/" + sha256(b"hello"), 5, size_field=size_field) + b"hello".ljust(512, b"\0")
    add(
        f"size_field_{label}",
        8,
        lambda forged=forged: Forge(edit_members=lambda members: [*members, forged]).build(),
    )

for label, size in {
    "larger": 321,
    "smaller": 319,
    "zero": 0,
    "negative": -1,
    "beyond_64_bits": 1 << 63,
    "text": "320",
    "float": 320.0,
    "true": True,
}.items():
    add(f"descriptor_size_{label}", 8, lambda size=size: Forge(edit_manifest=set_layer(4, size=size)).build())


@case(8, seen_by_inspect=False)
def table_size_differs() -> bytes:
    def edit(rows: Any) -> Any:
        next(row for row in rows if row["path"] == "data/a.bin")["size"] = 699
        return rows

    return Forge(edit_table=edit).build()


@case(8)
def config_size_differs() -> bytes:
    def edit(document: Any) -> None:
        document["config"]["size"] += 1

    return Forge(edit_manifest=edit).build()


@case(8)
def count_of_files_differs() -> bytes:
    def edit(document: Any) -> None:
        document["files"]["count"] += 1

    return Forge(edit_bundle=edit).build()


for label, digest in {
    "path": "sha256:../../../../etc/passwd",
    "upper_case": "sha256:" + "A" * 64,
    "sha512": "sha512:" + "a" * 128,
    "md5": "md5:" + "a" * 32,
    "short": "sha256:" + "a" * 63,
    "trailing_newline": "sha256:" + "a" * 64 + "\n",
    "no_algorithm": "a" * 64,
    "unicode_digits": "sha256:" + "\u0661" * 64,
    "number": 7,
}.items():
    add(f"digest_{label}", 9, lambda digest=digest: Forge(edit_manifest=set_layer(4, digest=digest)).build())


@case(9)
def manifest_digest_as_path() -> bytes:
    def edit(document: Any) -> None:
        document["manifests"][0]["digest"] = "sha256:../../oci-layout"

    return Forge(edit_index=edit).build()


@case(9)
def blob_name_of_another_algorithm() -> bytes:
    return Forge(edit_members=lambda members: [*members, member("blobs/md5/" + "a" * 32, b"x")]).build()


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)

    def edit(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return edit


@case(10, "digest-mismatch", seen_by_inspect=False)
def wrong_weights() -> bytes:
    return Forge(edit_file=swap(b"weights weights", b"weights Weights")).build()


@case(10, "digest-mismatch", seen_by_inspect=False)
def wrong_file_in_group() -> bytes:
    return Forge(edit_file=swap(b"AAAAAAAA", b"AAAABAAA")).build()


@case(10, "digest-mismatch", seen_by_inspect=False)
def right_group_wrong_table() -> bytes:
    def edit(rows: Any) -> Any:
        next(row for row in rows if row["path"] == "data/a.bin")["sha256"] = "0" * 64
        return rows

    return Forge(edit_table=edit).build()


@case(10, "digest-mismatch")
def wrong_model_yml() -> bytes:
    return Forge(edit_file=swap(b"name: tiny\n", b"name: evil\n")).build()


@case(10, "digest-mismatch")
def wrong_manifest() -> bytes:
    return Forge(
        edit_file=swap(
            b'"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest',
            b'"schemaVersion":3,"mediaType":"application/vnd.oci.image.manifest',
        )
    ).build()


@case(10)
def wrong_set_digest() -> bytes:
    def edit(document: Any) -> None:
        document["set_digest"] = "sha256:" + "0" * 64

    return Forge(edit_bundle=edit).build()


@case(11)
def truncated_in_data() -> bytes:
    return Forge(edit_file=lambda data: data[:-1500]).build()


@case(11)
def truncated_in_end_marker() -> bytes:
    return Forge(edit_file=lambda data: data[:-512]).build()


@case(11)
def no_end_marker() -> bytes:
    return Forge(edit_file=lambda data: data[:-1024]).build()


@case(11, "not-a-bundle")
def empty_file() -> bytes:
    return b""


@case(11)
def trailing_byte() -> bytes:
    return Forge(edit_file=lambda data: data + b"x").build()


@case(11)
def trailing_zeros() -> bytes:
    return Forge(edit_file=lambda data: data + bytes(512)).build()


@case(11)
def second_archive() -> bytes:
    return Forge(edit_file=lambda data: data + data).build()


@case(11)
def bytes_after_group_end() -> bytes:
    return Forge(edit_group=lambda members: [*members, bytes(1024), member("data/c.bin", b"c")]).build()


@case(11)
def missing_blob() -> bytes:
    return Forge(edit_members=lambda members: members[:-1]).build()


@case(11)
def extra_blob() -> bytes:
    return Forge(
        edit_members=lambda members: [*members, member("blobs/sha256/" + sha256(b"x"), b"x")]
    ).build()


@case(11, "not-a-bundle")
def no_index() -> bytes:
    return Forge(edit_members=lambda members: [members[0], *members[2:]]).build()


@case(11, "not-a-bundle")
def no_layout() -> bytes:
    return Forge(edit_members=lambda members: members[1:]).build()


@case(11, "not-a-bundle")
def empty_tar() -> bytes:
    return tar([])


@case(11, "not-a-bundle")
def zip_file() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("oci-layout", "{}")
    return buffer.getvalue()


@case(11, "not-a-bundle")
def compressed_bundle() -> bytes:
    return gzip.compress(Forge().build())


@case(12)
def unpacked_size_lies() -> bytes:
    def edit(document: Any) -> None:
        document["unpacked_size"] -= 1

    return Forge(edit_bundle=edit).build()


@case(12)
def one_blob_unpacked_a_thousand_times() -> bytes:
    return Forge(
        raw=[(f"w{i:04d}.bin", DATASET, bytes(1 << 20)) for i in range(1000)],
        group={},
        edit_bundle=lambda d: {**d, "assets": []},
    ).build()


@case(12)
def group_over_the_cap() -> bytes:
    chunks = [{"path": "mlbundle/groups/dataset-0000.tar", "sha256": ["a" * 64] * 2}]
    forge = Forge(
        group={"data/a.bin": bytes(64 << 20)}, edit_bundle=lambda document: {**document, "chunks": chunks}
    )
    return forge.build()


for label, names in {
    "case": ("data/A.bin", "data/a.bin"),
    "nfkc": ("data/ﬁle", "data/file"),
    "sharp_s": ("data/straße", "data/strasse"),
    "beyond_ascii": ("data/\u00c5ngstrom", "data/\u00e5ngstrom"),
}.items():
    add(
        f"collision_{label}",
        14,
        lambda names=names: Forge(group=dict.fromkeys(names, b"x")).build(),
        "unsafe-path",
    )


@case(14, "unsafe-path")
def file_is_a_folder() -> bytes:
    return Forge(group={"data/a": b"x", "data/a/b": b"y"}).build()


@case(14, "unsafe-path")
def file_is_a_folder_by_case() -> bytes:
    return Forge(group={"data/A": b"x", "data/a/b": b"y"}).build()


@case(14, "unsafe-path")
def weights_collide_with_dataset() -> bytes:
    return Forge(raw=[("Model.onnx", WEIGHT, b"1"), ("model.onnx", DATASET, b"2")]).build()


def replace_in(old: bytes, new: bytes) -> Callable[[Any], bytes]:
    def edit(document: Any) -> bytes:
        data = compact(document)
        assert old in data
        return data.replace(old, new, 1)

    return edit


@case(16)
def depth_bomb_in_index() -> bytes:
    return Forge(edit_index=lambda _: b"[" * 100_000 + b"]" * 100_000).build()


@case(16)
def depth_bomb_in_bundle() -> bytes:
    return Forge(
        edit_bundle=replace_in(b'"images":[]', b'"images":' + b'{"a":' * 1000 + b"1" + b"}" * 1000)
    ).build()


@case(16)
def quote_bomb_in_index() -> bytes:
    return Forge(edit_index=lambda _: b'"' + b'\\"' * (1 << 20) + b"\\").build()


@case(16)
def duplicate_key_in_manifest() -> bytes:
    return Forge(edit_manifest=replace_in(b'"layers":', b'"layers":[],"layers":')).build()


@case(16)
def duplicate_key_in_table() -> bytes:
    def edit(rows: Any) -> bytes:
        return b"".join(compact(row) + b"\n" for row in rows).replace(b'{"path":', b'{"path":"x","path":', 1)

    return Forge(edit_table=edit).build()


for label, number in {
    "nan": b"NaN",
    "infinity": b"Infinity",
    "exponent": b"1e999",
    "huge": b"9" * 5000,
}.items():
    edit_number = replace_in(b'"count":6', b'"count":' + number)
    add(f"number_{label}", 16, lambda edit_number=edit_number: Forge(edit_bundle=edit_number).build())


@case(16)
def huge_index() -> bytes:
    return Forge(edit_index=lambda document: compact(document) + b" " * (5 << 20)).build()


@case(16)
def not_utf8() -> bytes:
    return Forge(edit_bundle=replace_in(b'"none"', b'"\xff\xfe"')).build()


@case(16)
def lone_surrogate() -> bytes:
    return Forge(edit_bundle=replace_in(b'"none"', b'"\\udc80"')).build()


@case(16)
def text_after_json() -> bytes:
    return Forge(edit_config=lambda document: compact(document) + b"{}").build()


@case(16)
def table_without_last_newline() -> bytes:
    return Forge(edit_table=lambda rows: b"\n".join(compact(row) for row in rows)).build()


def with_bundle(**values: Any) -> bytes:
    return Forge(edit_bundle=lambda document: {**document, **values}).build()


add("engine_flags", 18, lambda: with_bundle(docker={"privileged": True}))
add("mounts", 18, lambda: with_bundle(mounts=["/:/host"]))
add("environment", 18, lambda: with_bundle(environment={"LD_PRELOAD": "/x"}))
add(
    "image_with_flags",
    18,
    lambda: with_bundle(
        images=[
            {
                "architecture": "amd64",
                "accelerator": "cpu",
                "image": "x",
                "digest": "sha256:" + "a" * 64,
                "arguments": ["--privileged"],
            }
        ]
    ),
)
add(
    "image_without_digest",
    18,
    lambda: with_bundle(images=[{"architecture": "amd64", "accelerator": "cpu", "image": "x"}]),
)
add("newer_schema", 18, lambda: with_bundle(schema="mlbundle/bundle/v2"))


@case(18)
def other_name_in_config() -> bytes:
    def edit(document: Any) -> None:
        document["descriptor"]["name"] = "trusted"

    return Forge(edit_config=edit).build()


@case(18)
def other_tag_in_index() -> bytes:
    def edit(document: Any) -> None:
        document["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] = "latest"

    return Forge(edit_index=edit).build()


@case(18)
def two_manifests() -> bytes:
    return Forge(edit_index=lambda document: {**document, "manifests": document["manifests"] * 2}).build()


@case(18)
def plain_container_image() -> bytes:
    def edit(document: Any) -> None:
        del document["manifests"][0]["artifactType"]

    return Forge(edit_index=edit).build()


@case(18)
def urls_in_a_layer() -> bytes:
    return Forge(edit_manifest=set_layer(4, urls=["https://example.invalid/x"])).build()


@case(18)
def unknown_layer_type() -> bytes:
    return Forge(raw=[("model.onnx", "application/vnd.oci.image.layer.v1.tar", b"x")], group={}).build()


@case(18)
def layers_out_of_order() -> bytes:
    return Forge(raw=[("labels.txt", LABELS, b"x"), ("model.onnx", WEIGHT, b"y")]).build()


@case(18)
def table_not_first() -> bytes:
    def edit(document: Any) -> None:
        document["layers"][0], document["layers"][1] = document["layers"][1], document["layers"][0]

    return Forge(edit_manifest=edit).build()


@case(18)
def file_in_a_document_layer() -> bytes:
    def edit(rows: Any) -> Any:
        rows[0]["layer"] = 0
        return rows

    return Forge(edit_table=edit).build()


@case(18)
def file_in_a_layer_that_is_not_there() -> bytes:
    def edit(rows: Any) -> Any:
        rows[0]["layer"] = 99
        return rows

    return Forge(edit_table=edit).build()


@case(18)
def diff_ids_of_other_layers() -> bytes:
    def edit(document: Any) -> None:
        document["modelfs"]["diffIds"].reverse()

    return Forge(edit_config=edit).build()


@case(18)
def asset_that_is_not_there() -> bytes:
    return with_bundle(assets=[{"pointer": "/model/graph_path", "path": "other.onnx"}])


@case(18)
def chunks_of_a_small_layer() -> bytes:
    return with_bundle(chunks=[{"path": "model.onnx", "sha256": ["a" * 64]}])


@case(5)
def one_group_for_two() -> bytes:
    """One blob stands for two groups, and it is the tar of the second one only."""

    def split(rows: Any) -> Any:
        rows[1]["layer"] += 1
        return rows

    def twice(document: Any) -> None:
        path = GROUP_PATH.replace("0000", "0001")
        again = {"org.cncf.model.filepath": path, "org.opencontainers.image.title": path}
        document["layers"].append({**document["layers"][-1], "annotations": again})

    return Forge(
        group={"data/a.bin": b"same", "data/b.bin": b"same"},
        edit_group=lambda members: members[1:],
        edit_table=split,
        edit_manifest=twice,
        edit_config=lambda document: document["modelfs"]["diffIds"].append(
            document["modelfs"]["diffIds"][-1]
        ),
    ).build()


for label, values in {
    "model_yml": {"model_yaml": b"#" * ((1 << 20) + 1)},
    "framework_yml": {"framework_yaml": b"#" * ((1 << 20) + 1)},
}.items():
    add(f"{label}_over_1_mib", 15, lambda values=values: Forge(**values).build())


@pytest.mark.parametrize("broken", CASES.parameters())
def test_broken_bundle_is_refused(broken: Case, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuse(broken, box, capsys)


def test_the_cases_cover_the_attack_classes() -> None:
    assert {broken.attack for broken in CASES} == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 18}


def test_the_forge_makes_sound_bundles(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the cases are made of is accepted: each is refused for its fault alone."""
    (box / "good.mlb").write_bytes(Forge().build())
    for command in ("inspect", "verify", "unpack"):
        assert run(capsys, command, "good.mlb")[0] == 0
    assert (box / "good" / "data" / "a.bin").read_bytes() == b"A" * 700


class Trap:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, ("loaded.txt", "w")


def pickled(protocol: int) -> bytes:
    return pickle.dumps(Trap(), protocol=protocol)


def torch_like() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data.pkl", pickled(2))
    return buffer.getvalue()


DISGUISES = {
    **{f"protocol_{protocol}": pickled(protocol) for protocol in range(6)},
    "gzip": gzip.compress(pickled(2)),
    "zip": torch_like(),
    "gzip_of_gzip": gzip.compress(gzip.compress(pickled(4))),
    "long_first_string": pickle.dumps(["x" * 100_000, Trap()], protocol=0),
}


@pytest.mark.attack(17)
@pytest.mark.parametrize("disguise", DISGUISES)
def test_pickle_is_reported_and_never_loaded(
    disguise: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge = Forge(
        raw=[("model.onnx", WEIGHT, DISGUISES[disguise])], group={"data/innocent.txt": b"some text\n" * 9}
    )
    (box / "sly.mlb").write_bytes(forge.build())
    for command in ("inspect", "verify"):
        status, document = run(capsys, command, "sly.mlb")
        assert (status, document["pickles"]) == (0, ["model.onnx"])
    assert run(capsys, "unpack", "sly.mlb")[0] == 0
    assert not list(box.rglob("loaded.txt"))


@pytest.mark.attack(17)
def test_pickle_in_a_group_is_reported(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "sly.mlb").write_bytes(
        Forge(group={"data/a.png": pickled(3), "data/b.png": b"\x89PNG\r\n\x1a\n"}).build()
    )
    assert run(capsys, "verify", "sly.mlb")[1]["pickles"] == ["data/a.png"]


@pytest.mark.attack(18)
def test_text_of_a_stranger_does_not_steer_the_terminal(
    box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text = "evil\u202eknird", "evil\x1b[2J\u202eknird"
    forge = Forge(
        model_yaml=f'name: "{name}"\n'.encode(),
        edit_bundle=lambda document: {**document, "model": {"name": name, "version": "1.0.0"}},
        edit_config=lambda document: {
            **document,
            "descriptor": {"name": name, "version": "1.0.0", "description": text},
        },
        group={"data/\u202eknird": b"x"},
    )
    (box / "sly.mlb").write_bytes(forge.build())
    for command in (["inspect", "--files", "sly.mlb"], ["verify", "sly.mlb"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert not ended.value.code
        printed = capsys.readouterr()
        assert not set(printed.out + printed.err) & {"\x1b", "\u202e"}


@pytest.mark.parametrize(
    "yaml",
    [b"name: trusted\n", b"name: tiny\nversion: 9.9.9\n", b'name: "tin\\x79 "\n'],
    ids=["name", "version", "escaped"],
)
def test_a_manifest_that_is_called_otherwise_is_refused(
    yaml: bytes, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Policies and the library go by bundle.json, runs by model.yml: they must not differ."""
    (box / "two.mlb").write_bytes(Forge(model_yaml=yaml).build())
    for command in (
        ["verify", "two.mlb"],
        ["unpack", "two.mlb"],
        ["add", "two.mlb"],
        ["run", "--dry-run", "two.mlb"],
    ):
        status, document = run(capsys, *command)
        assert (status, document["reference"]) == (5, "bundle-corrupt")


@pytest.mark.attack(2)
def test_an_existing_folder_is_never_touched(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (box / "good.mlb").write_bytes(Forge().build())
    (box / "link").symlink_to("/nowhere")
    (box / "folder").mkdir()
    for target in ("link", "folder"):
        status, document = run(capsys, "unpack", "good.mlb", "-o", target)
        assert (status, document["reference"]) == (2, "usage")
    assert (box / "link").is_symlink()
    assert list((box / "folder").iterdir()) == []


@pytest.mark.attack(4)
@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_regular_file_is_no_bundle(
    kind: str, box: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing waits for the other end of a pipe."""
    if kind == "folder":
        (box / "thing").mkdir()
    else:
        os.mkfifo(box / "thing")
    for command in ("inspect", "verify", "unpack"):
        status, document = run(capsys, command, "thing", *(("-o", "new") if command == "unpack" else ()))
        assert (status, document["reference"]) in {(2, "reference-not-found"), (5, "not-a-bundle")}, document
    with pytest.raises(NotABundle, match="no regular file"):
        open_bundle(box / "thing")
