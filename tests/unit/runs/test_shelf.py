"""The shelf: bundles of every place in SQL, and what of each can run here, what is missing, and what mends it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import TINY_NET, make_bundle

from mlbundle.config import Settings, load_settings
from mlbundle.errors import EngineUnavailable, ImageMissing, ReferenceNotFound
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.runs.bundle_detail import look_into
from mlbundle.runs.bundle_facts import BundleFacts, Form, facts_from_document, facts_of_manifest
from mlbundle.runs.bundle_filter import parse_filter
from mlbundle.runs.bundle_sources import built_in_rows, folder_rows
from mlbundle.runs.opening import bring
from mlbundle.runs.readiness import RANKS, Here, readiness
from mlbundle.runs.references import resolve
from mlbundle.runs.shelf import BundleRow, Shelf
from mlbundle.runs.shelf_states import judge
from mlbundle.runtime import images
from mlbundle.store.entries import LibraryEntry
from mlbundle.store.library import Library


@pytest.fixture
def settings(home: Path) -> Settings:
    return load_settings()


@pytest.fixture
def shelf(settings: Settings) -> Iterator[Shelf]:
    shelf = Shelf(settings)
    yield shelf
    shelf.close()


@pytest.fixture
def here(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Here:
    """A machine of amd64 without an engine and without a GPU."""

    def no_engine(*_: object) -> None:
        raise EngineUnavailable("no engine")

    monkeypatch.setattr(images, "engine_client", no_engine)
    monkeypatch.setattr("mlbundle.runtime.image_list.engine_client", no_engine)
    monkeypatch.setattr("mlbundle.runtime.devices.nvidia_driver", lambda: None)
    here = Here(settings)
    here.architecture = "amd64"
    return here


def add(settings: Settings, reference: str | Path) -> LibraryEntry:
    return bring(resolve(str(reference), settings), settings)


def many(settings: Settings, count: int) -> None:
    """Entries of a library whose bundles are not there: what a list shows needs no more."""
    folder = settings.data_dir / "library"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name = f"{number:064x}"
        entry = LibraryEntry(
            name=f"net-{number:05}",
            version=f"1.{number % 20}.0",
            manifest_digest=f"sha256:{name}",
            set_digest=f"sha256:{name}",
            added_at="2026-01-01T00:00:00Z",
            source="oci://registry.example/nets:1",
            index=b"{}",
            blobs=((name, 10),),
        )
        (folder / f"{name}.json").write_bytes(entry.render())


def test_built_in_models_are_there_with_task_frameworks_and_what_is_to_be_made(shelf: Shelf) -> None:
    shelf.put(built_in_rows())
    rows = {row.reference: row for row in shelf.page()}
    assert rows["digits-cnn"].task == "image classification"
    assert rows["digits-cnn"].framework == "onnxruntime torch tensorflow"
    assert "amd64" in rows["digits-cnn"].arch
    assert rows["resnet50"].where == "to make"
    assert [row.name for row in shelf.page(parse_filter("framework:torch task:image"))] == ["digits-cnn"]


def test_the_library_is_followed(shelf: Shelf, settings: Settings, tmp_path: Path) -> None:
    assert shelf.sync() == 0
    entry = add(settings, make_bundle(tmp_path / "mini"))
    assert shelf.sync() == 1
    assert shelf.sync() == 0
    (row,) = shelf.page()
    assert (row.reference, row.size, row.where, row.read) == (
        entry.reference,
        entry.size_bytes,
        "library",
        False,
    )
    assert shelf.read_some() == [row.key]
    assert shelf.unread() == 0
    assert shelf.page()[0].task == "vector classification"
    removed = shelf.remove(row.key)
    assert removed == entry
    assert shelf.page() == []
    assert Library(settings.data_dir).entries() == []


def test_what_was_read_is_known_when_the_shelf_is_opened_again(settings: Settings, tmp_path: Path) -> None:
    add(settings, make_bundle(tmp_path / "mini"))
    first = Shelf(settings)
    first.sync()
    first.read_some()
    first.close()
    again = Shelf(settings)
    assert [row.task for row in again.page()] == ["vector classification"]
    assert again.facts(again.page()[0].key) is not None
    again.close()


@pytest.mark.parametrize("damage", [b"", b"SQLite format 3\0" + bytes(100), b"no database at all"])
def test_a_damaged_cache_is_made_anew(settings: Settings, tmp_path: Path, damage: bytes) -> None:
    add(settings, make_bundle(tmp_path / "mini"))
    settings.cache_dir.mkdir(parents=True)
    (settings.cache_dir / "shelf.sqlite").write_bytes(damage)
    shelf = Shelf(settings)
    shelf.sync()
    assert shelf.count() == 1
    shelf.close()


def test_thousands_are_paged_filtered_and_sorted(shelf: Shelf, settings: Settings) -> None:
    many(settings, 1200)
    shelf.sync()
    assert shelf.count() == 1200
    pages = [shelf.page(offset=offset) for offset in (0, 500, 1000, 1500)]
    assert [len(page) for page in pages] == [500, 500, 200, 0]
    assert pages[1][0].name == "net-00500"
    assert shelf.count(parse_filter("net-0111")) == 10
    versions = [row.version for row in shelf.page(parse_filter("net-0000"))]
    assert versions == [f"1.{n}.0" for n in range(10)]
    assert [row.name for row in shelf.page(parse_filter("NET-00003 where:library"))] == ["net-00003"]


def test_a_bundle_that_can_not_be_read_says_so_and_the_others_go_on(
    shelf: Shelf, settings: Settings, here: Here, tmp_path: Path
) -> None:
    many(settings, 1)
    add(settings, make_bundle(tmp_path / "mini"))
    shelf.sync()
    states = {row.name: judge(row, shelf, here) for row in shelf.page()}
    assert states["net-00000"].state == "assets missing"
    assert [mend.command for mend in states["net-00000"].mends] == [
        "mlbundle pull oci://registry.example/nets:1"
    ]
    assert states["mini"].state == "environment missing"
    assert {row.name: row.state for row in shelf.page(sort="state")} == {
        "mini": "environment missing",
        "net-00000": "assets missing",
    }
    assert [row.name for row in shelf.page(parse_filter("state:assets"))] == ["net-00000"]
    shelf.forget_states()
    assert shelf.page(parse_filter("state:assets")) == []


def test_a_folder_is_looked_through(shelf: Shelf, settings: Settings, tmp_path: Path) -> None:
    make_bundle(tmp_path / "a" / "mini")
    broken = tmp_path / "b"
    broken.mkdir()
    (broken / "model.yml").write_text("name: [")
    packed = tmp_path / "c" / "packed.mlb"
    packed.parent.mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    from mlbundle.runs.packing import pack_manifest

    pack_manifest(tmp_path / "a" / "mini", packed)
    (tmp_path / "c" / "bad.mlb").write_bytes(b"nonsense")
    shelf.put(folder_rows(tmp_path))
    rows = {row.reference: row for row in shelf.page()}
    assert set(rows) == {
        str(tmp_path / "a" / "mini"),
        str(broken),
        str(packed),
        str(packed.with_name("bad.mlb")),
    }
    assert rows[str(packed)].digest is not None
    assert rows[str(packed)].task == "vector classification"
    assert "error" in rows[str(broken)].problem
    assert rows[str(packed.with_name("bad.mlb"))].problem
    detail = look_into(rows[str(packed)], settings)
    assert {file.path for file in detail.files} >= {"model.onnx", "data.npz"}
    assert detail.digest == rows[str(packed)].digest


def test_a_folder_that_is_not_there_is_an_error(shelf: Shelf, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", make_bundle(tmp_path / "mini") / "model.yml" / "in a file"):
        with pytest.raises(ReferenceNotFound, match="there is no folder or file") as raised:
            shelf.put(folder_rows(place))
        assert str(place) in raised.value.message
        assert "space" not in str(raised.value.hint)


def test_a_file_can_be_named_itself(shelf: Shelf, tmp_path: Path) -> None:
    from mlbundle.runs.packing import pack_manifest

    folder, packed = make_bundle(tmp_path / "mini"), tmp_path / "mini.mlb"
    pack_manifest(folder, packed)
    shelf.put([*folder_rows(folder / "model.yml"), *folder_rows(packed), *folder_rows(folder / "model.onnx")])
    assert {row.reference for row in shelf.page()} == {str(folder), str(packed)}


def test_a_manifest_without_its_assets_says_which(shelf: Shelf, here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "model.yml").write_text(TINY_NET)
    shelf.put(folder_rows(folder))
    found = judge(shelf.page()[0], shelf, here)
    assert found.state == "assets missing"
    assert "net.onnx" in found.problem


def test_detail_of_a_manifest_on_disk_can_be_edited(settings: Settings, tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "mini")
    ((row, _),) = list(folder_rows(folder))
    detail = look_into(row, settings)
    assert detail.path == folder / "model.yml"
    assert detail.model is not None
    assert not any("error" in problem for problem in detail.problems)
    (folder / "model.onnx").unlink()
    assert "model.onnx" in " ".join(look_into(row, settings).problems)


def test_code_wants_trust_but_ours_does_not(
    shelf: Shelf, settings: Settings, here: Here, tmp_path: Path
) -> None:
    coded = make_bundle(tmp_path / "coded", preprocess="return data")
    shelf.put(folder_rows(coded))
    shelf.put(built_in_rows())
    add(settings, "digits-code")
    shelf.sync()
    states = {(row.where, row.name): judge(row, shelf, here).state for row in shelf.page()}
    assert states["folder", "mini"] == "needs --trust"
    assert states["built in", "digits-code"] == "environment missing"
    assert states["library", "digits-code"] == "environment missing"


def test_facts_survive_being_written(tmp_path: Path) -> None:
    facts = facts_of_manifest(make_bundle(tmp_path / "mini"))
    assert facts_from_document(json.loads(json.dumps(facts.to_document()))) == facts


FRAMEWORK = FrameworkManifest(
    "onnxruntime",
    "1.31.1",
    containers={
        "amd64": {
            "cpu": ImageChoice("mlbundle/onnxruntime:1.31.1-cpu-amd64", build="containers/onnxruntime/cpu")
        }
    },
    python={"amd64": {"cpu": "containers/onnxruntime/cpu/requirements-amd64.lock"}},
)


def facts_of(framework: FrameworkManifest, *, code: bool = False) -> BundleFacts:
    form = Form("onnxruntime", "onnxruntime", "*", code)
    return BundleFacts("image classification", "", (form,), {"onnxruntime": framework}, "onnxruntime")


def test_an_image_that_was_never_built_can_be_built_or_pulled(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Engine:
        def close(self) -> None:
            pass

    def missing(*_: object, **__: object) -> None:
        raise ImageMissing("never built")

    monkeypatch.setattr(images, "engine_client", lambda *_: Engine())
    monkeypatch.setattr(images, "resolve_image", missing)
    found = readiness(facts_of(FRAMEWORK), here)
    docker, process = found.ways
    assert (docker.state, process.state, found.state) == (
        "image missing",
        "environment missing",
        "environment missing",
    )
    assert docker.mend is not None
    assert docker.mend.command == "mlbundle images build onnxruntime --arch amd64 --accelerator cpu"
    pulled = replace(
        FRAMEWORK,
        version="9.9.9",
        containers={"amd64": {"cpu": ImageChoice("lab.example/ort:9.9.9")}},
        python={},
    )
    here.forget()
    (way,) = readiness(facts_of(pulled), here).ways
    assert way.mend is not None
    assert (way.mend.kind, way.mend.source) == ("pull", "lab.example/ort:9.9.9")


def test_a_machine_of_another_architecture_can_run_nothing(here: Here) -> None:
    here.architecture = "riscv64"
    found = readiness(facts_of(FRAMEWORK), here)
    assert (found.state, found.ways) == ("unusable", ())


def test_an_environment_is_ready_when_it_is_made(here: Here, settings: Settings) -> None:
    from mlbundle.manifest.locks import installed_lock
    from mlbundle.runtime.environments import environment_folder

    lock = installed_lock(FRAMEWORK.python["amd64"]["cpu"])
    assert lock is not None
    folder = environment_folder(settings.cache_dir, "onnxruntime", lock)
    (folder / "bin").mkdir(parents=True)
    shutil.copy("/bin/true", folder / "bin" / "python")
    (folder / "mlbundle-environment.json").write_text("{}")
    assert readiness(facts_of(FRAMEWORK), here).state == "ready"
    assert readiness(facts_of(FRAMEWORK, code=True), here).state == "needs --trust"
    assert readiness(facts_of(FRAMEWORK, code=True), here, trusted=True).state == "ready"
    shutil.rmtree(folder)
    assert readiness(facts_of(FRAMEWORK), here).state == "ready"  # asked once
    here.forget()
    assert readiness(facts_of(FRAMEWORK), here).state == "environment missing"


@hypothesis_settings(max_examples=50)
@given(st.text(min_size=1, max_size=500), st.text(max_size=100))
def test_a_row_of_any_name_is_found_again(name: str, version: str) -> None:
    settings = Settings(
        data_dir=Path("/nonexistent/d"), cache_dir=Path("/proc/nowhere"), config_dir=Path("/nonexistent")
    )
    name = name.encode("utf-8", "replace").decode()
    version = version.encode("utf-8", "replace").decode()
    shelf = Shelf(settings)
    row = BundleRow(key="k", where="folder", reference="r", name=name, version=version)
    shelf.put([(row, None)])
    assert shelf.row("k") == row
    assert shelf.page() == [row]
    shelf.close()


def test_the_states_are_ranked_from_what_runs_to_what_does_not() -> None:
    assert (RANKS[0], RANKS[-1]) == ("ready", "unusable")
