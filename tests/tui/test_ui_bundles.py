"""The section Bundles: found, filtered, looked into, verified, removed, pulled; wild names and narrow screens."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from mlbundle_tui.bundle_actions import edit
from mlbundle_tui.context import Context
from mlbundle_tui.screens.bundles import BundlesSection
from mlbundle_tui.screens.dialogs import Dialog, TextDialog
from mlbundle_tui.widgets.bundle_table import BundleTable
from registry_fixture import RealRegistry
from rich.cells import cell_len
from support import make_bundle
from textual.pilot import Pilot
from textual.widgets import Input
from tui_pilot import drive, press, settled, text_of, until

from mlbundle.config import Settings, load_settings
from mlbundle.errors import EngineUnavailable, ToolMissing
from mlbundle.manifest.locks import installed_lock
from mlbundle.manifest.select import select_lock
from mlbundle.platforms import this_architecture
from mlbundle.runs import bundle_sources
from mlbundle.runs.exchange import push
from mlbundle.runs.network import Network
from mlbundle.runs.opening import bring, client_of, open_reference
from mlbundle.runs.references import resolve
from mlbundle.runs.shelf import BundleRow
from mlbundle.runtime import environments, images
from mlbundle.store.library import Library

WILD = [
    "[red]name[/red]",
    "名" * 250,
    "x" * 500,
    "עברית \u202e مرحبا",
    "a\tb\nc\x1b[31m",
    "👩‍👩‍👧‍👦" * 60,
    "[/",
    "\\[",
]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without an engine and without a GPU: what it has is the same everywhere."""

    def no_engine(*_: object) -> None:
        raise EngineUnavailable("no engine answers", hint="start it")

    monkeypatch.setattr(images, "engine_client", no_engine)
    monkeypatch.setattr("mlbundle.runtime.image_list.engine_client", no_engine)
    monkeypatch.setattr("mlbundle.runtime.devices.nvidia_driver", lambda: None)


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "models" / "mini")


@pytest.fixture
def kept(mini: Path) -> str:
    """A bundle of the library; returns its reference."""
    settings = load_settings()
    return bring(resolve(str(mini), settings), settings).reference


async def opens(pilot: Pilot[None], key: str, text: str) -> None:
    """Press a key and wait for a dialog that shows a text."""
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, Dialog) and text in text_of(pilot.app))


async def enter(pilot: Pilot[None], text: str, selector: str = "Input") -> None:
    """Paste a line and press enter."""
    pilot.app.screen.query_one(selector, Input).value = text
    await pilot.press("enter")


def table(pilot: Pilot[None]) -> BundleTable:
    return pilot.app.screen_stack[0].query_one(BundleTable)


async def choose(pilot: Pilot[None], reference: str) -> None:
    """Put the cursor on a bundle."""
    references = [row.reference for row in table(pilot).rows_shown]
    table(pilot).cursor = references.index(reference)
    await settled(pilot)


def test_what_there_is_and_what_can_run_here_is_seen_at_once() -> None:
    async def steps(pilot: Pilot[None]) -> str:
        return text_of(pilot.app)

    shown = drive(steps, size=(120, 40))
    assert "digits-cnn" in shown
    assert "resnet50" in shown
    assert shown.count("environment missing") >= 3
    assert "not here" in shown
    assert "top1 0.980556" in shown
    assert "mlbundle run digits-cnn" in shown


def test_an_environment_that_a_run_made_is_seen_when_the_section_is_shown_again() -> None:
    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "2")
        for framework in ("onnxruntime", "torch", "tensorflow"):
            make_environment(framework)
        await press(pilot, "1")
        return text_of(pilot.app)

    shown = drive(steps, size=(120, 40))
    assert "environment missing" not in shown
    assert re.search("digits-cnn +● ready", shown)


def make_environment(framework: str) -> None:
    """Make what is taken for the Python environment of a framework."""
    manifest = images.built_in_framework(framework)
    lock = installed_lock(select_lock(manifest, this_architecture(), "cpu"))
    assert lock is not None
    folder = environments.environment_folder(load_settings().cache_dir, framework, lock)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "mlbundle-environment.json").write_text("{}")


def test_what_is_to_be_made_is_made_after_a_question_and_a_form_takes_what_is_under_the_cursor() -> None:
    async def steps(pilot: Pilot[None]) -> list[str]:
        seen = []
        await choose(pilot, "resnet50")
        seen.append(text_of(pilot.app))
        for key in ("p", "enter"):
            await opens(pilot, key, "Make")
            seen.append(text_of(pilot.app))
            await pilot.press("n")
            await settled(pilot)
        await choose(pilot, "digits-code")
        await opens(pilot, "e", "comes with mlbundle")
        await pilot.press("n")
        await settled(pilot)
        await press(pilot, "2")
        return [*seen, text_of(pilot.app)]

    overview, *asked, form = drive(steps, size=(120, 40))
    assert overview.count("too big to ship") == 1
    for question in asked:
        assert re.search(r"make resnet50: \d+ MiB", question)
        assert "mlbundle generate resnet50 && mlbundle add ./resnet50" in " ".join(question.split())
    assert "mlbundle run digits-code" in form


def test_what_is_wrong_with_a_manifest_is_said_once(mini: Path) -> None:
    (mini / "model.yml").write_text((mini / "model.yml").read_text().replace("inputs:", "inputz:", 1))

    async def steps(pilot: Pilot[None]) -> str:
        await opens(pilot, "o", "repository")
        await enter(pilot, str(mini))
        await settled(pilot)
        await choose(pilot, str(mini))
        return text_of(pilot.app)

    shown = drive(steps, size=(160, 40))
    assert shown.count("the model manifest has") == 1
    assert "did you mean 'inputs'" in " ".join(shown.replace("│", " ").split())


def test_the_filter_narrows_and_esc_clears_it() -> None:
    async def steps(pilot: Pilot[None]) -> list[list[str]]:
        found = []

        def names() -> list[str]:
            return [row.name for row in table(pilot).rows_shown]

        await press(pilot, "slash", *"torch")
        found.append(names())
        await enter(pilot, "framework:torch", "#filter")
        await settled(pilot)
        found.append(names())
        await press(pilot, "escape")
        found.append(names())
        await press(pilot, "slash")
        await enter(pilot, "state:environment", "#filter")
        await settled(pilot)
        found.append(names())
        await press(pilot, "slash")
        await enter(pilot, "nothing-like-it", "#filter")
        await settled(pilot)
        found.append(names())
        assert "nothing fits: esc clears the filter" in text_of(pilot.app)
        return found

    assert drive(steps) == [
        ["digits-cnn"],
        ["digits-cnn"],
        ["digits-cnn", "digits-code", "digits-png", "resnet50"],
        ["digits-cnn", "digits-code", "digits-png"],
        [],
    ]


def test_tabs_tell_the_rest_and_each_has_its_command(kept: str) -> None:
    async def steps(pilot: Pilot[None]) -> dict[str, str]:
        await choose(pilot, kept)
        shown = {}
        for name in ("manifest", "assets", "images", "history", "overview"):
            await press(pilot, "right_square_bracket")
            shown[name] = text_of(pilot.app)
        await press(pilot, "left_square_bracket", "c")
        shown["copied"] = pilot.app.clipboard
        return shown

    shown = drive(steps, size=(160, 40))
    assert "license: Apache-2.0" in shown["manifest"]
    assert f"mlbundle inspect {kept} --files" in shown["assets"]
    assert "data.npz" in shown["assets"]
    assert "the first run makes its Python environment" in shown["images"]
    assert "no runs yet" in shown["history"]
    assert f"mlbundle run {kept}" in shown["overview"]
    assert shown["copied"] == "mlbundle runs list --model mini"


@pytest.mark.parametrize("key", ["r", "enter"])
def test_a_bundle_is_taken_to_the_section_run(key: str) -> None:
    async def steps(pilot: Pilot[None]) -> tuple[bool, str]:
        await choose(pilot, "digits-code")
        await pilot.press(key)
        await until(pilot, lambda: not isinstance(pilot.app.screen, BundlesSection))
        await settled(pilot)
        return "mlbundle run digits-code" in text_of(pilot.app), pilot.app.current_mode

    assert drive(steps) == (True, "run")


def test_readonly_neither_runs_nor_removes_nor_builds(kept: str) -> None:
    async def steps(pilot: Pilot[None]) -> set[str]:
        await choose(pilot, kept)
        await press(pilot, "r", "enter", "d", "p", "e")
        assert isinstance(pilot.app.screen, BundlesSection)
        assert f"mlbundle inspect {kept}" in text_of(pilot.app)
        return {active.binding.action for active in pilot.app.screen.active_bindings.values()}

    actions = drive(steps, Context(load_settings(), readonly=True), size=(120, 40))
    assert not actions & {"run_bundle", "remove", "mend", "editor"}
    assert {"filter", "verify"} <= actions
    assert len(Library(load_settings().data_dir).entries()) == 1


def test_removing_asks_first(kept: str) -> None:
    async def steps(pilot: Pilot[None]) -> list[int]:
        counts = []
        await choose(pilot, kept)
        for answer in ("escape", "enter", "y"):
            await opens(pilot, "d", f"mlbundle rm {kept}")
            await press(pilot, answer)
            counts.append(len(Library(load_settings().data_dir).entries()))
        assert kept not in [row.reference for row in table(pilot).rows_shown]
        return counts

    assert drive(steps) == [1, 1, 0]


def test_verify_says_yes_and_of_a_damaged_bundle_what_to_do(kept: str) -> None:
    settings = load_settings()
    largest = max(Library(settings.data_dir).entries()[0].blobs, key=lambda blob: blob[1])[0]

    async def steps(pilot: Pilot[None]) -> tuple[str, str]:
        await choose(pilot, kept)
        await opens(pilot, "v", "every byte")
        good = text_of(pilot.app)
        await press(pilot, "escape")
        blob = Library(settings.data_dir).store.path(largest)
        blob.chmod(0o644)
        data = blob.read_bytes()
        blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        await opens(pilot, "v", "what to do")
        return good, text_of(pilot.app)

    good, bad = drive(steps, size=(120, 40))
    assert f"mlbundle verify {kept}" in good
    assert "mlbundle repair" in bad


def test_a_folder_is_opened_and_one_without_bundles_is_told(mini: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    async def steps(pilot: Pilot[None]) -> str:
        await opens(pilot, "o", "Bundles of a folder")
        await enter(pilot, str(tmp_path / "models"))
        await settled(pilot)
        await choose(pilot, str(mini))
        shown = text_of(pilot.app)
        await opens(pilot, "o", "Bundles of a folder")
        await enter(pilot, str(tmp_path / "empty"))
        await until(pilot, lambda: "there is no bundle in" in text_of(pilot.app))
        return shown

    assert "mini" in drive(steps, size=(120, 30))


def test_a_registry_is_opened_and_a_bundle_pulled(mini: Path, registry: RealRegistry) -> None:
    place = f"oci://{registry.host}/ui/mini"
    settings = load_settings()
    with open_reference(str(mini), settings) as reader:
        target = resolve(f"{place}:1.0.0", settings).registry
        assert target is not None
        with client_of(target, Network(plain_http=True), to_push=True) as client:
            push(reader, client, target)

    async def steps(pilot: Pilot[None]) -> str:
        await opens(pilot, "o", "Bundles of a folder")
        await enter(pilot, f"{place} --plain-http")
        await settled(pilot)
        await choose(pilot, f"{place}:1.0.0")
        assert f"mlbundle pull {place}:1.0.0 --plain-http" in text_of(pilot.app)
        # A run reaches its registry in the same way.
        await press(pilot, "r")
        assert f"mlbundle run {place}:1.0.0 --plain-http" in text_of(pilot.app)
        await press(pilot, "1")
        await pilot.press("p")
        await until(pilot, lambda: "pulled mini:1.0.0@" in text_of(pilot.app))
        await settled(pilot)
        return text_of(pilot.app)

    assert "library" in drive(steps, size=(160, 40))
    assert [entry.name for entry in Library(settings.data_dir).entries()] == ["mini"]


@pytest.mark.parametrize(
    ("place", "said"),
    [("oci://h.example/x --force", "--plain-http"), ("/nowhere", "no folder or file /nowhere")],
)
def test_a_place_that_is_none_is_an_error_with_a_hint(place: str, said: str) -> None:
    async def steps(pilot: Pilot[None]) -> str:
        await opens(pilot, "o", "Bundles of a folder")
        await enter(pilot, place)
        await until(pilot, lambda: isinstance(pilot.app.screen, TextDialog))
        shown = text_of(pilot.app)
        # What was mistyped need not be typed again.
        await press(pilot, "escape")
        await opens(pilot, "o", "Bundles of a folder")
        assert pilot.app.focused.value == place
        return shown

    assert said in drive(steps, size=(120, 30))


def test_a_narrow_screen_has_one_pane() -> None:
    async def steps(pilot: Pilot[None]) -> tuple[str, str, str]:
        first = text_of(pilot.app)
        await press(pilot, "right_square_bracket")
        second = text_of(pilot.app)
        await press(pilot, "escape")
        return first, second, text_of(pilot.app)

    first, second, third = drive(steps, size=(60, 20))
    assert "resnet50" in first
    assert "overview" not in first
    assert "overview" in second
    assert "resnet50" not in second
    assert third == first


@pytest.mark.parametrize("size", [(20, 5), (60, 20), (200, 50)])
def test_no_name_breaks_the_screen(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    rows = [
        (
            BundleRow(
                key=f"k{n}", where="folder", reference=name, name=name, version=name, source=name, read=True
            ),
            None,
        )
        for n, name in enumerate(WILD)
    ]
    monkeypatch.setattr(bundle_sources, "built_in_rows", lambda: iter(rows))

    async def steps(pilot: Pilot[None]) -> str:
        assert len(table(pilot).rows_shown) == len(WILD)
        for _ in WILD:
            await pilot.press("down")
            await pilot.pause(0.1)
            lines = text_of(pilot.app).splitlines()
            assert len(lines) <= size[1]
            assert all(cell_len(line) <= size[0] for line in lines)
            assert "\x1b" not in text_of(pilot.app)
        return text_of(pilot.app)

    drive(steps, size=size)


def test_markup_in_a_name_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    row = BundleRow(key="k", where="folder", reference="r", name="[red]name[/red]", version="1", read=True)
    monkeypatch.setattr(bundle_sources, "built_in_rows", lambda: iter([(row, None)]))

    async def steps(pilot: Pilot[None]) -> str:
        return text_of(pilot.app)

    assert drive(steps, size=(120, 30)).count("[red]name[/red]") == 2


def test_thousands_come_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (
            BundleRow(
                key=f"{n:05}", where="folder", reference=f"r{n}", name=f"net-{n:05}", version="1", read=True
            ),
            None,
        )
        for n in range(1100)
    ]
    monkeypatch.setattr(bundle_sources, "built_in_rows", lambda: iter(rows))

    async def steps(pilot: Pilot[None]) -> list[int]:
        counts = [len(table(pilot).rows_shown)]
        for _ in range(3):
            await press(pilot, "G")
            counts.append(len(table(pilot).rows_shown))
        assert "of 1,100" in text_of(pilot.app)
        return counts

    assert drive(steps) == [500, 1000, 1100, 1100]


def test_sorting_goes_from_column_to_column() -> None:
    async def steps(pilot: Pilot[None]) -> list[str]:
        shown = []
        for _ in range(6):
            await press(pilot, "s")
            shown.append(table(pilot).rows_shown[0].name)
        return shown

    assert drive(steps)[-1] == "digits-cnn"


def test_the_manifest_over_the_whole_screen() -> None:
    async def steps(pilot: Pilot[None]) -> str:
        await press(pilot, "y")
        await press(pilot, "c")
        return str(pilot.app.clipboard)

    assert drive(steps).startswith("name: digits-cnn")


def test_an_editor_gets_the_file_or_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard"
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncat "$2" >> {heard}; echo "$2" >> {heard}\n')
    editor.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{editor} -f")
    file = tmp_path / "model.yml"
    file.write_text("of the folder\n")
    edit(nullcontext, "of the bundle\n", None)
    edit(nullcontext, "", file)
    lines = heard.read_text().splitlines()
    assert (lines[0], lines[2], lines[3]) == ("of the bundle", "of the folder", str(file))
    assert not Path(lines[1]).exists()
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    with pytest.raises(ToolMissing):
        edit(nullcontext, "", file)


def test_a_library_that_can_not_be_read_is_told(home: Path) -> None:
    settings: Settings = load_settings()
    settings.data_dir.mkdir(parents=True)
    (settings.data_dir / "library").write_text("no folder")

    async def steps(pilot: Pilot[None]) -> str:
        return text_of(pilot.app)

    assert "digits-cnn" in drive(steps, size=(120, 30))
