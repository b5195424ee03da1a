"""Mending in a process of its own: steps are heard, errors keep their type, and it can be stopped at any moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import make_bundle

from mlbundle.config import load_settings
from mlbundle.errors import Interrupted, PythonEnvironmentFailed, UsageError
from mlbundle.runs import generate
from mlbundle.runs.bundle_filter import parse_filter
from mlbundle.runs.bundle_sources import built_in_rows, parse_source
from mlbundle.runs.mending import Mending, mend
from mlbundle.runs.network import Network
from mlbundle.runs.readiness import Here, Mend, built_with
from mlbundle.runs.shelf import Shelf
from mlbundle.runs.shelf_states import judge
from mlbundle.store.library import Library


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def bundle(source: str, **more: bool) -> Mend:
    return Mend("bundle", "pull the bundle", f"mlbundle pull {source}", source=source, **more)


def test_what_is_done_is_there_in_the_folders_that_were_named(tmp_path: Path) -> None:
    settings = load_settings()
    mending = Mending(bundle(str(make_bundle(tmp_path / "mini"))), settings)
    steps = list(mending)
    assert mending.result().startswith("pulled mini:1.0.0@sha256:")
    mending.close()
    assert steps[-1].done_bytes == steps[-1].total_bytes > 0
    assert [entry.name for entry in Library(settings.data_dir).entries()] == ["mini"]


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (bundle("oci://h.example/NO:1"), UsageError),
        (
            Mend("environment", "t", "c", framework="onnxruntime", source="../../etc/passwd"),
            PythonEnvironmentFailed,
        ),
    ],
)
def test_errors_keep_their_type_and_hint(what: Mend, error: type[Exception]) -> None:
    mending = Mending(what, load_settings())
    list(mending)
    with pytest.raises(error) as caught:
        mending.result()
    mending.close()
    assert not isinstance(caught.value, Interrupted)


def test_it_is_stopped_while_it_waits_for_a_server(silent_server: str) -> None:
    mending = Mending(bundle(f"oci://{silent_server}/x:1", plain_http=True), load_settings())
    for step in mending:
        assert step.text
        threading.Thread(target=mending.stop).start()
    with pytest.raises(Interrupted):
        mending.result()
    mending.close()


@pytest.mark.parametrize(
    ("text", "place", "network"),
    [
        ("/a b/--plain-http", "/a b/--plain-http", Network()),
        ("oci://h.example/x", "oci://h.example/x", Network()),
        ("oci://h.example/x --plain-http", "oci://h.example/x", Network(plain_http=True)),
        ("oci://h.example/x --ca-file '/a b'", "oci://h.example/x", Network(ca_file=Path("/a b"))),
    ],
)
def test_a_place_says_how_it_is_reached(text: str, place: str, network: Network) -> None:
    assert parse_source(text) == (place, network)


@pytest.mark.parametrize("text", ["oci://h/x --force", "oci://h/x --ca-file", "oci://h/x 'a"])
def test_anything_else_behind_a_place_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_source(text)


def test_a_model_that_is_made_comes_into_the_library_and_its_folder_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings()
    (row,) = [row for row, _ in built_in_rows() if row.where == "to make"]
    with closing(Shelf(settings)) as shelf:
        shelf.put(built_in_rows())
        (what,) = judge(row, shelf, Here(settings)).mends
        assert "resnet50" in what.title
        assert "MiB" in what.title

        def made(wanted: generate.Order, *_: object) -> None:
            model = make_bundle(wanted.folder) / "model.yml"
            model.write_text(model.read_text().replace("name: mini", "name: resnet50", 1))

        monkeypatch.setattr(generate, "generate", made)
        assert mend(what, settings).startswith("made resnet50:1.0.0@sha256:")
        assert list((settings.cache_dir / "generated").glob("resnet50")) == []
        shelf.sync()
        assert [r.where for r in shelf.page(parse_filter("resnet50"))] == ["library"]


def test_a_build_is_given_its_base_image_and_network(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def build(*_arguments: Any, **named: Any) -> Any:
        given.append(named)
        return SimpleNamespace(ref="x", config_digest="y")

    monkeypatch.setattr("mlbundle.runtime.images.build_image", build)
    plain = Mend("build", "t", "mlbundle images build torch", framework="torch", accelerator="cpu")
    for what in (plain, built_with(plain, "me/base:1", "host")):
        assert mend(what, load_settings()) == "built x y"
    told = [(named["base_image"], named["network"]) for named in given]
    assert told == [(None, None), ("me/base:1", "host")]
