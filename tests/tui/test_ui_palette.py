"""The palette: everything that can be done, its keys, and the command line that does the same."""

from __future__ import annotations

import re

import click
from mlbundle_tui.demo import demo_context
from mlbundle_tui.keys import _bindings, _nodes, all_ids
from mlbundle_tui.palette import COMMANDS, WITHIN, palette_commands
from mlbundle_tui.screens.dialogs import TextDialog
from tui_pilot import drive, press, text_of

from mlbundle.cli.main import cli as root
from mlbundle.config import load_settings


def offered(*keys: str) -> dict[str, str]:
    """Title -> help of what the palette has after some keys."""

    async def steps(pilot):
        await press(pilot, *keys)
        return {c.title: str(c.help) for c in palette_commands(pilot.app, pilot.app.screen)}

    with demo_context(load_settings()) as context:
        return drive(steps, context, size=(120, 40))


def test_every_section_offers_what_it_can_do_with_key_and_command_line() -> None:
    found = offered("3")
    assert found["Open"].startswith("key ⏎ · mlbundle runs show 2")
    # Of what is chosen, the whole line.
    assert "mlbundle trace open 2" in found["Trace"]
    assert "mlbundle runs rm 2" in found["Remove"]
    machine = next(title for title in found if title.startswith("Go to Machine"))
    assert found[machine] == "key 5 · mlbundle doctor · section.machine"
    # What can be done in another section is found by what it is.
    assert next(title for title in found if "verify" in title).startswith("Go to Bundles")
    assert "mlbundle runs show 2" in found["Copy command"]
    assert {"Theme: dark", "Theme: light", "Theme: ansi"} <= set(found)


def test_what_is_chosen_in_the_palette_is_done() -> None:
    async def steps(pilot):
        await pilot.press("ctrl+p", *"Compare", "enter")
        await press(pilot)
        section = pilot.app.screen.name_of_section
        await pilot.press("ctrl+p", *"light", "enter")
        await press(pilot)
        theme, shown = pilot.app.theme, str([n.message for n in pilot.app._notifications])
        await pilot.press("ctrl+p", *"how to change", "enter")
        await press(pilot)
        keys = str(pilot.app.screen.text)
        await pilot.press("ctrl+p")
        return section, theme, shown, keys, pilot.app.screen

    with demo_context(load_settings()) as context:
        section, theme, shown, keys, top = drive(steps, context, size=(120, 40))
    assert (section, theme) == ("compare", "mlbundle-light")
    assert 'tui_theme = "light"' in shown
    assert re.search(r"runs\.sort +s\b", keys)
    assert isinstance(top, TextDialog)  # no palette above a box


def test_readonly_offers_nothing_that_changes_anything() -> None:
    async def steps(pilot):
        seen = set()
        for key in "12345":
            await press(pilot, key)
            seen |= {c.title for c in palette_commands(pilot.app, pilot.app.screen)}
        return seen, text_of(pilot.app)

    with demo_context(load_settings(), readonly=True) as context:
        titles, _ = drive(steps, context, size=(120, 40))
    assert "Open" in titles
    assert titles.isdisjoint({"Remove", "Stop", "Start", "Pull or build"})


def test_what_a_form_says_and_the_bundle_under_the_cursor_are_in_the_commands() -> None:
    bundles = offered()
    assert re.search(r"mlbundle verify (?!BUNDLE)\S+", bundles["Verify"])
    run = offered("r")
    assert re.search(r"mlbundle run (?!BUNDLE)\S+ --detach", run["Run"])
    assert "Stop" not in run  # nothing goes on


def test_c_copies_the_command_of_what_has_the_focus() -> None:
    async def steps(pilot):
        copied = []
        for keys in (["r"], ["3"], ["space", "space"], ["4"], ["5"]):
            await press(pilot, *keys)
            await press(pilot, "c")
            copied.append(pilot.app.clipboard)
            shown = text_of(pilot.app).splitlines()
            assert any(line.strip() and pilot.app.clipboard.startswith(line.strip()) for line in shown)
        return copied

    with demo_context(load_settings()) as context:
        run, runs, marked, compare, machine = drive(steps, context, size=(160, 40))
    assert run.startswith("mlbundle run ")
    assert runs.startswith("mlbundle runs show 2")
    assert marked.startswith("mlbundle compare 2")
    assert compare.startswith("mlbundle compare 2")
    assert machine == "mlbundle doctor"


def test_whatever_has_keys_has_a_command_or_a_reason_for_having_none() -> None:
    ids = set(all_ids())
    without = {name for name in ids if name in WITHIN or name.partition(".")[0] in WITHIN}
    assert ids == set(COMMANDS) | without
    assert not set(COMMANDS) & without
    assert all(WITHIN.values())
    # No reason is given for what is not there.
    assert {name for name in WITHIN if "." in name} <= ids
    assert {name for name in WITHIN if "." not in name} <= {name.partition(".")[0] for name in ids}


def test_what_does_something_is_called_something_so_it_is_in_the_palette() -> None:
    called = {binding.id: binding.description for node in _nodes() for binding in _bindings(node)}
    assert [name for name in COMMANDS if not called[name]] == []


def test_every_command_that_is_named_exists() -> None:
    for line in COMMANDS.values():
        program, *words = line.split(",")[0].split()
        if program == "$EDITOR":
            continue
        assert program == "mlbundle", line
        command: click.Command | None = root
        for word in words:
            if not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, line
        assert command is not None
        known = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("--")} <= known, line
