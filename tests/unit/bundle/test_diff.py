"""What differs between two bundles, section by section."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_samples import PIN, content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_samples import Image, Note, with_images

from mlbundle.bundle.assemble import with_images as keep_images
from mlbundle.bundle.assemble import with_referrers
from mlbundle.bundle.content import BundleContent, Compression, Role, SourceFile
from mlbundle.bundle.diff import Difference, diff
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import BundleReader, open_bundle

MODEL = """\
# a comment
name: tiny
version: 1.10
outputs: [{name: a}, {name: b}]
expected: {accuracy: {metric: top1, value: 0.9, tolerance: 0.01}}
"""


def bundle(
    model: str = MODEL, framework: str = "name: none\nversion: 1.0\n", **files: bytes
) -> BundleContent:
    """A bundle of these manifests with small files; `model.onnx` is there always."""
    documents = (
        SourceFile("mlbundle/model.yml", Role.MODEL, model.encode()),
        SourceFile("mlbundle/framework.yml", Role.FRAMEWORK, framework.encode()),
        SourceFile("model.onnx", Role.WEIGHT, b"weights"),
    )
    data = (SourceFile(f"data/{name}", Role.DATASET, value) for name, value in files.items())
    return BundleContent("tiny", "1.0.0", "none", "1.0", (*documents, *data))


def opened(found: BundleContent, folder: Path) -> BundleReader:
    number = len(list(folder.iterdir()))
    return open_bundle(pack(found, folder / f"{number}.mlb").path)


def compare(left: BundleContent, right: BundleContent, folder: Path) -> Difference:
    with opened(left, folder) as one, opened(right, folder) as other:
        return diff(one, other)


def changes(found: Difference) -> list[tuple[str, str, str, Any, Any]]:
    return [(c.section, c.kind, c.place, c.left, c.right) for c in found.changes]


def test_a_bundle_does_not_differ_from_itself(tmp_path: Path) -> None:
    found = compare(bundle(a=b"a"), bundle(a=b"a"), tmp_path)
    assert changes(found) == []
    assert found.same_manifest
    assert found.same_files


def test_fields_of_the_model_are_compared_as_they_are_written(tmp_path: Path) -> None:
    other = (
        MODEL.replace("1.10", "1.1").replace("{name: b}", "{name: c, size: 2}").replace("name: tiny\n", "")
    )
    found = compare(bundle(), bundle(other), tmp_path)
    assert set(changes(found)) == {
        ("model", "changed", "/version", "1.10", "1.1"),
        ("model", "changed", "/outputs/1/name", "b", "c"),
        ("model", "added", "/outputs/1/size", None, "2"),
        ("model", "removed", "/name", "tiny", None),
    }
    assert not found.same_manifest
    assert not found.same_files


def test_claims_have_a_section_of_their_own(tmp_path: Path) -> None:
    other = MODEL.replace("0.9", "0.95").replace("1.10", "2")
    found = compare(bundle(), bundle(other), tmp_path)
    assert changes(found) == [
        ("model", "changed", "/version", "1.10", "2"),
        ("claims", "changed", "/expected/accuracy/value", "0.9", "0.95"),
    ]
    without = MODEL[: MODEL.index("expected")]
    removed = changes(compare(bundle(), bundle(without), tmp_path))
    assert {change[:2] for change in removed} == {("claims", "removed")}
    assert len(removed) == 3


@pytest.mark.parametrize("other", [MODEL.replace("# a comment\n", ""), MODEL.replace("1.10", "'1.10'")])
def test_other_words_for_the_same_are_one_change(other: str, tmp_path: Path) -> None:
    (change,) = changes(compare(bundle(), bundle(other), tmp_path))
    assert change[:3] == ("model", "changed", "")
    assert "layout or comments" in change[4]


def test_what_is_no_manifest_is_compared_whole(tmp_path: Path) -> None:
    (change,) = [c for c in changes(compare(bundle(), bundle("a: [\n"), tmp_path)) if c[1] == "added"]
    assert change == ("model", "added", "", None, "a: [\n")


def test_the_framework_is_compared(tmp_path: Path) -> None:
    found = compare(bundle(), bundle(framework="name: none\nversion: 2.0\n"), tmp_path)
    assert changes(found) == [("framework", "changed", "/version", "1.0", "2.0")]


def test_files_are_compared_by_their_bytes_and_modes(tmp_path: Path) -> None:
    left, right = bundle(same=b"s", old=b"old", other=b"1"), bundle(same=b"s", new=b"new", other=b"22")
    found = compare(left, right, tmp_path)
    assert [change[:3] for change in changes(found)] == [
        ("files", "removed", "data/old"),
        ("files", "changed", "data/other"),
        ("files", "added", "data/new"),
    ]
    changed = found.changes[1]
    assert (changed.left["size"], changed.right["size"]) == (1, 2)
    executable = replace(left.files[3], mode=0o755)
    (change,) = compare(
        left, replace(left, files=(*left.files[:3], executable, *left.files[4:])), tmp_path
    ).changes
    assert (change.place, change.left["mode"], change.right["mode"]) == ("data/same", "0644", "0755")


def test_the_same_files_packed_in_another_way(tmp_path: Path) -> None:
    file = SourceFile("net.onnx", Role.WEIGHT, random.Random(0).randbytes(9000).hex().encode())
    left, right = content(file), content(file, compression=Compression(weights=True))
    found = compare(left, right, tmp_path)
    assert changes(found) == []
    assert found.same_files
    assert not found.same_manifest


def test_images_are_compared_by_platform(tmp_path: Path) -> None:
    other = replace(PIN, digest="sha256:" + "cd" * 32)
    found = compare(content(images=(PIN,)), content(images=(other,)), tmp_path)
    ((section, kind, place, left, right),) = changes(found)
    assert (section, kind, place) == ("images", "changed", "amd64/cpu")
    assert (left["digest"], right["digest"]) == (PIN.digest, other.digest)
    assert [c[1] for c in changes(compare(content(), content(images=(PIN,)), tmp_path))] == ["added"]


def test_what_is_attached_is_compared(tmp_path: Path) -> None:
    with opened(with_images(Image("cpu"), Image("cuda")), tmp_path) as left:
        note = Note((left.manifest_digest, len(left.manifest_bytes)))
        right = with_referrers(keep_images(left, ["cpu"]), [(note.manifest, note.blobs)])
        found = diff(left, right)
    assert [change[:2] for change in changes(found)] == [("attachments", "removed"), ("attachments", "added")]
    assert "cuda" in found.changes[0].place
    assert note.artifact_type in found.changes[1].place
    assert found.same_manifest


def test_the_document_says_it_all(tmp_path: Path) -> None:
    found = compare(bundle(), bundle(framework="name: none\n"), tmp_path)
    document = json.loads(json.dumps(found.to_document()))
    assert document["schema"] == "mlbundle/diff/v1"
    assert (document["same_manifest"], document["same_files"]) == (False, False)
    assert document["left"]["manifest"] != document["right"]["manifest"]
    assert document["changes"] == [
        {"section": "framework", "kind": "removed", "place": "/version", "left": "1.0", "right": None}
    ]


files = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.binary(max_size=2))


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(files, files)
def test_the_other_way_round_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, left: dict[str, bytes], right: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    there = compare(bundle(**left), bundle(**right), folder)
    back = compare(bundle(**right), bundle(**left), folder)
    assert {c.place for c in there.changes} == {
        f"data/{name}" for name in left.keys() | right.keys() if left.get(name) != right.get(name)
    }
    turned = {(c.section, c.place, str(c.right), str(c.left)) for c in back.changes}
    assert {(c.section, c.place, str(c.left), str(c.right)) for c in there.changes} == turned
    assert there.same_files is back.same_files is (left == right)
