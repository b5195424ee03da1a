"""The palette: everything that can be done, its keys, and the command line that does the same."""

from __future__ import annotations

import click
from mlbundle_tui.demo import demo_context
from mlbundle_tui.keys import all_ids
from mlbundle_tui.palette import COMMANDS, palette_commands
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
    assert "mlbundle trace open RUN" in found["Trace"]
    assert "mlbundle runs rm RUN" in found["Remove"]
    assert found["Machine"] == "key 5 · mlbundle doctor · section.machine"
    # Of what is chosen, the whole line.
    assert "mlbundle runs show 2" in found["Copy command"]
    assert {"Theme: dark", "Theme: light", "Theme: ansi"} <= set(found)


def test_what_is_chosen_in_the_palette_is_done() -> None:
    async def steps(pilot):
        await pilot.press("ctrl+p", *"Compare", "enter")
        await press(pilot)
        section = pilot.app.screen.name_of_section
        await pilot.press("ctrl+p", *"light", "enter")
        await press(pilot)
        return section, pilot.app.theme

    with demo_context(load_settings()) as context:
        assert drive(steps, context, size=(120, 40)) == ("compare", "mlbundle-light")


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


def test_every_command_that_is_named_exists_and_every_id_is_one() -> None:
    assert set(COMMANDS) <= set(all_ids())
    for line in filter(None, COMMANDS.values()):
        command: click.Command | None = root
        for word in line.split(",")[0].split()[1:]:
            if not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word)
            assert command is not None, line
