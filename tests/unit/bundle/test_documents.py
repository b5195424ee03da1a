"""The documents of a bundle, byte for byte."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from bundle_samples import PIN, content, tiny
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.bundle.content import Role, SourceFile
from mlbundle.bundle.digests import set_digest
from mlbundle.bundle.document import Asset, Chunks, chunk_count, encode_bundle, parse_bundle
from mlbundle.bundle.oci import go_json, ref_name
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle
from mlbundle.bundle.table import FileEntry, encode_table, parse_table
from mlbundle.errors import BundleCorrupt, IntegrityError
from mlbundle.resources import load_schema


def test_json_is_escaped_as_go_escapes_it() -> None:
    assert go_json({"b": "<a> & \u2028\u2029", "a": 'é"\\\n\t\x01'}) == (
        b'{"b":"\\u003ca\\u003e \\u0026 \\u2028\\u2029","a":"\xc3\xa9\\"\\\\\\n\\t\\u0001"}'
    )


def test_the_documents_of_a_small_bundle(tmp_path: Path) -> None:
    """Every document as the specifications order it; checked by hand once."""
    packed = pack(tiny(), tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        digests = [layer.digest for layer in reader.layers]
        manifest = json.loads(reader.manifest_bytes)
        config = reader.source.read_at(packed.config_digest.removeprefix("sha256:"), 0, 4096)
    assert list(manifest) == ["schemaVersion", "mediaType", "artifactType", "config", "layers"]
    assert list(manifest["layers"][0]) == ["mediaType", "digest", "size", "annotations"]
    assert [
        (layer["annotations"]["org.cncf.model.filepath"], layer["mediaType"]) for layer in manifest["layers"]
    ] == [
        ("mlbundle/bundle.json", "application/vnd.cncf.model.code.v1.raw"),
        ("mlbundle/files.jsonl", "application/vnd.cncf.model.code.v1.raw"),
        ("mlbundle/model.yml", "application/vnd.cncf.model.code.v1.raw"),
        ("mlbundle/framework.yml", "application/vnd.cncf.model.code.v1.raw"),
        ("model.onnx", "application/vnd.cncf.model.weight.v1.raw"),
        ("labels.txt", "application/vnd.cncf.model.weight.config.v1.raw"),
        ("mlbundle/groups/dataset-0000.tar", "application/vnd.cncf.model.dataset.v1.tar"),
    ]
    assert config == (
        b'{"descriptor":{"name":"tiny","version":"1.0.0"},"modelfs":{"type":"layers","diffIds":'
        + json.dumps(digests, separators=(",", ":")).encode()
        + b'},"config":{"format":"onnx"}}'
    )


def test_optional_parts_of_the_config_and_the_document(tmp_path: Path) -> None:
    made = content(license="MIT", description="two\nlines \x07& more", images=(PIN,), version="1.0.0+cu12")
    pack(made, tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        assert (reader.config.license, reader.config.description) == ("MIT", "two lines & more")
        assert reader.document.images == (PIN,)
        assert reader.tag == ref_name("1.0.0+cu12") == "1.0.0_cu12"
        assert parse_bundle(reader.document.to_document(), "x") == reader.document
        assert json.loads(encode_bundle(reader.document))["images"][0]["digest"] == PIN.digest


def test_the_document_obeys_its_schema(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    made = content(
        SourceFile("w.onnx", Role.WEIGHT, bytes((64 << 20) + 1)),
        images=(PIN,),
        assets=(Asset("/model/graph_path", "w.onnx"),),
    )
    pack(made, tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        document = json.loads(encode_bundle(reader.document))
    assert len(document["chunks"][0]["sha256"]) == 2
    jsonschema.Draft202012Validator(load_schema("bundle")).validate(document)


def test_the_set_digest_is_what_coreutils_compute(tmp_path: Path) -> None:
    files = {"b.txt": b"2", "a.txt": b"1", "c/d.txt": b""}
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(data)
    command = "sha256sum b.txt a.txt c/d.txt | LC_ALL=C sort | sha256sum"
    printed = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    ours = set_digest((hashlib.sha256(data).hexdigest(), path) for path, data in files.items())
    assert ours == "sha256:" + printed.split()[0]


entries = st.dictionaries(
    st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=12).filter(
        lambda t: t.isascii()
    ).map(lambda t: "f_" + t),
    st.tuples(st.integers(0, 2**40), st.binary(min_size=32, max_size=32), st.sampled_from([0o644, 0o755]), st.integers(2, 9999)),
    max_size=6,
)  # fmt: skip


@given(entries)
def test_the_file_table_is_read_back(rows: dict[str, tuple[int, bytes, int, int]]) -> None:
    table = [FileEntry(p, size, sha.hex(), mode, layer) for p, (size, sha, mode, layer) in rows.items()]
    table.sort(key=lambda entry: entry.path.encode())
    assert parse_table(encode_table(table), "x") == tuple(table)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_file_table_or_refused(data: bytes) -> None:
    with contextlib.suppress(IntegrityError):
        assert encode_table(parse_table(data, "x")) == data


def test_the_form_of_a_line() -> None:
    entry = FileEntry("a <b>.txt", 3, "0" * 64, 0o755, 4)
    line = (
        b'{"path":"a \\u003cb\\u003e.txt","size":3,"sha256":"' + b"0" * 64 + b'","mode":"0755","layer":4}\n'
    )
    assert encode_table([entry]) == line
    for other in (line.replace(b":3,", b":03,"), line.replace(b"\\u003c", b"<"), b" " + line, line + b"\n"):
        with pytest.raises(BundleCorrupt):
            parse_table(other, "x")


def test_chunks_are_of_64_mib() -> None:
    assert [chunk_count(n) for n in (0, 64 << 20, (64 << 20) + 1, 128 << 20, (128 << 20) + 1)] == [
        0,
        0,
        2,
        2,
        3,
    ]


def test_a_large_layer_has_the_hashes_of_its_chunks(tmp_path: Path) -> None:
    data = bytes(range(256)) * (65 << 12)
    (tmp_path / "w.bin").write_bytes(data)
    pack(content(SourceFile("w.bin", Role.WEIGHT, tmp_path / "w.bin")), tmp_path / "t.mlb")
    with open_bundle(tmp_path / "t.mlb") as reader:
        parts = (data[: 64 << 20], data[64 << 20 :])
        assert reader.document.chunks == (
            Chunks("w.bin", tuple(hashlib.sha256(p).hexdigest() for p in parts)),
        )
