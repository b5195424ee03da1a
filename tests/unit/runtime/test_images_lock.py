"""The images lock: what is written comes back, neighbours survive, damage is said and never repaired in silence."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.errors import StorageFailed
from mlbundle.runtime.lock import ImageKey, LockedImage, read_images_lock, record_image

KEY = ImageKey("onnxruntime", "1.31.1", "amd64", "cpu")
IMAGE = LockedImage(
    ref="mlbundle/onnxruntime:1.31.1-cpu-amd64",
    config_digest="sha256:" + "a" * 64,
    base_image="debian:bookworm",
    lock_sha256="b" * 64,
    built_at="2026-11-20T14:25:03+00:00",
)


def test_no_file_means_no_images(tmp_path: Path) -> None:
    assert read_images_lock(tmp_path / "images.lock") == {}


def test_an_entry_comes_back_and_the_file_is_what_other_programs_expect(tmp_path: Path) -> None:
    path = tmp_path / "new" / "images.lock"
    record_image(path, KEY, IMAGE)
    assert read_images_lock(path) == {KEY: IMAGE}
    document = json.loads(path.read_text())
    assert document["schema"] == "mlbundle/images-lock/v1"
    assert document["images"]["onnxruntime/1.31.1/amd64/cpu"]["config_digest"] == "sha256:" + "a" * 64


def test_a_new_build_replaces_its_own_entry_only(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    other = ImageKey("onnxruntime", "1.31.1", "arm64", "cpu")
    record_image(path, KEY, IMAGE)
    record_image(path, other, IMAGE)
    newer = LockedImage(**{**IMAGE.__dict__, "config_digest": "sha256:" + "c" * 64})
    record_image(path, KEY, newer)
    assert read_images_lock(path) == {KEY: newer, other: IMAGE}


def test_entries_added_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    keys = [ImageKey("onnxruntime", f"1.{minor}.0", "amd64", "cpu") for minor in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: record_image(path, key, IMAGE), keys))
    assert set(read_images_lock(path)) == set(keys)


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["schema", "images", "a/b/c/d"]), inner)
        ),
    )
)
def test_any_other_json_is_refused_with_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, document
) -> None:
    path = tmp_path_factory.mktemp("lock") / "images.lock"
    path.write_text(json.dumps(document))
    with pytest.raises(StorageFailed):
        read_images_lock(path)


def entry(**changes: object) -> str:
    return json.dumps(
        {
            "schema": "mlbundle/images-lock/v1",
            "images": {"onnxruntime/1.31.1/amd64/cpu": {**IMAGE.__dict__, **changes}},
        }
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "damaged"),
        ('{"schema": "mlbundle/im', "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"schema": "mlbundle/images-lock/v1"}', "lists no images"),
        (
            '{"schema": "mlbundle/images-lock/v1", "images": {"onnxruntime": {}}}',
            "has an entry 'onnxruntime'",
        ),
        (entry(ref=None), "incomplete"),
        (entry(config_digest="sha256:short"), "no digest"),
        (entry(config_digest="latest"), "no digest"),
    ],
)
def test_a_damaged_lock_names_the_file_and_the_way_out(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "images.lock"
    path.write_text(content)
    with pytest.raises(StorageFailed, match=said) as failure:
        read_images_lock(path)
    assert failure.value.where == str(path)
    assert "images build" in (failure.value.hint or "")
    with pytest.raises(StorageFailed):
        record_image(path, KEY, IMAGE)
    assert path.read_text() == content


def test_a_newer_lock_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    path.write_text('{"schema": "mlbundle/images-lock/v2", "images": {}}')
    with pytest.raises(StorageFailed) as failure:
        read_images_lock(path)
    assert "upgrade" in (failure.value.hint or "")


def test_fields_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    path.write_text(entry(colour="blue", size_bytes=None))
    assert read_images_lock(path) == {KEY: IMAGE}
