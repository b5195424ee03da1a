"""The images lock: what is written comes back, neighbours survive, damage is said and never repaired in silence."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mlbundle.errors import StorageFailed, UsageError
from mlbundle.resources import load_schema
from mlbundle.runtime.lock import (
    ImageKey,
    LockedImage,
    RegistryName,
    forget_image,
    read_images_lock,
    record_image,
)

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


REGISTRY = "host:5000/me/onnxruntime"
FIRST, SECOND = (RegistryName(f"{REGISTRY}:{tag}", "sha256:" + tag * 64) for tag in "de")


def test_the_file_of_the_first_version_is_read_and_says_nothing_more_when_written_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "images.lock"
    first = {name: getattr(IMAGE, name) for name in ("ref", "config_digest", "base_image")}
    first |= {"lock_sha256": IMAGE.lock_sha256, "built_at": IMAGE.built_at}
    path.write_text(json.dumps({"schema": "mlbundle/images-lock/v1", "images": {str(KEY): first}}))
    assert read_images_lock(path) == {KEY: IMAGE}
    record_image(path, KEY, IMAGE)
    assert json.loads(path.read_text())["images"][str(KEY)] == {**first, "source": "built"}


def test_both_digests_are_kept_through_a_load_and_a_second_registry(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    record_image(path, KEY, replace(IMAGE, registry=(FIRST,)))
    record_image(path, KEY, replace(IMAGE, source="loaded", size_bytes=5))
    record_image(path, KEY, replace(IMAGE, source="pulled", registry=(SECOND,)))
    entry = read_images_lock(path)[KEY]
    assert (entry.source, entry.registry) == ("pulled", (FIRST, SECOND))
    # The bare digest of a tag that is known is nothing new; a tag that moved is.
    record_image(
        path, KEY, replace(IMAGE, registry=(RegistryName(f"{REGISTRY}@{FIRST.digest}", FIRST.digest),))
    )
    moved = RegistryName(FIRST.ref, index_digest="sha256:" + "f" * 64)
    record_image(path, KEY, replace(IMAGE, registry=(moved,)))
    assert read_images_lock(path)[KEY].registry == (SECOND, moved)
    assert moved.digest == "sha256:" + "f" * 64


def test_another_image_for_the_same_use_has_none_of_the_old_names(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    record_image(path, KEY, replace(IMAGE, registry=(FIRST,)))
    record_image(path, KEY, replace(IMAGE, config_digest="sha256:" + "c" * 64))
    assert read_images_lock(path)[KEY].registry == ()


def test_an_entry_can_be_forgotten_once(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    record_image(path, KEY, IMAGE)
    assert forget_image(path, KEY) is True
    assert forget_image(path, KEY) is False
    assert read_images_lock(path) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "found"},
        {"size_bytes": -1},
        {"size_bytes": True},
        {"base_image": 5},
        {"image_id": "latest"},
        {"registry": {}},
        {"registry": [{"ref": "a"}]},
        {"registry": [{"ref": "a", "manifest_digest": "sha256:short"}]},
        {"registry": [{"manifest_digest": "sha256:" + "d" * 64}]},
    ],
    ids=str,
)
def test_a_field_that_can_not_be_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "images.lock"
    path.write_text(entry(**changes))
    with pytest.raises(StorageFailed):
        read_images_lock(path)


def test_the_file_is_what_its_schema_says(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    record_image(path, KEY, replace(IMAGE, registry=(FIRST,), size_bytes=5, image_id="sha256:" + "9" * 64))
    record_image(path, replace(KEY, architecture="arm64"), LockedImage("a:1", IMAGE.config_digest))
    validator = Draft202012Validator(load_schema("images-lock"))
    assert list(validator.iter_errors(json.loads(path.read_text()))) == []
    assert not validator.is_valid(json.loads(entry(config_digest="latest")))


@pytest.mark.parametrize("part", ["lab/fw", "", "..", " x", "a" * 65, "b\n"])
def test_a_name_that_could_not_be_read_back_never_gets_into_the_file(tmp_path: Path, part: str) -> None:
    with pytest.raises(UsageError):
        replace(KEY, framework=part)
    path = tmp_path / "images.lock"
    record_image(path, KEY, IMAGE)
    text = path.read_text().replace(f'"{KEY.framework}/', f'"{part}/'.replace("\n", "\\n"))
    path.write_text(text)
    with pytest.raises(StorageFailed):
        read_images_lock(path)
