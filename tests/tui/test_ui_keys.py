"""Keys of the terminal UI that the user's settings file changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlbundle_tui.context import Context
from mlbundle_tui.keys import all_ids, check_keys
from support import Cli
from tui_pilot import drive, press, text_of

from mlbundle.config import load_settings
from mlbundle.errors import UsageError


def write_settings(home: Path, text: str) -> Path:
    path = home / "config" / "mlbundle.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_a_key_is_given_to_something_else_and_the_old_one_does_nothing(home: Path) -> None:
    write_settings(home, '[keys]\n"section.runs" = ["f6", "z"]\nsection.machine = "ctrl+g"\n')
    settings = load_settings()
    assert settings.keys == {"section.runs": "f6,z", "section.machine": "ctrl+g"}

    async def steps(pilot):
        seen = []
        for key in ("3", "z", "ctrl+g", "f6"):
            await press(pilot, key)
            seen.append(pilot.app.screen.name_of_section)
        return seen

    keys = check_keys(settings.keys, "here")
    assert drive(steps, Context(settings), keys=keys) == ["bundles", "runs", "machine", "runs"]


def test_config_show_lists_keys_and_where_they_come_from(home: Path, cli: Cli) -> None:
    path = write_settings(home, 'runtime = "process"\ntui_theme = "light"\n[keys]\n"runs.sort" = "o"\n')
    shown = cli("config", "show", "--format", "json").document()["settings"]
    assert shown["tui_theme"] == {"value": "light", "origin": str(path)}
    listed = cli("tui", "--keys").stdout.splitlines()
    assert [line.split() for line in listed if line.startswith("runs.sort ")] == [["runs.sort", "o", "(set)"]]
    assert shown["keys.runs.sort"] == {"value": "o", "origin": str(path)}
    assert shown["runtime"]["value"] == "process"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keys = 3", "must be a table"),
        ('[keys]\n"app.quit" = 3', "must be a text"),
        ('[keys]\n"app.quit" = []', "must be a text"),
    ],
)
def test_a_table_of_keys_that_is_none(home: Path, cli: Cli, text: str, says: str) -> None:
    write_settings(home, text)
    assert says in cli("config", "show", "--json").error(2, "usage")["message"]


def test_a_folder_of_somebody_else_has_no_say_in_what_keys_do(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mlbundle.toml").write_text('[keys]\n"app.quit" = "j"\n')
    error = cli("config", "show", "--json").error(2, "usage")
    assert "belong to the user" in error["message"]


@pytest.mark.parametrize(
    "key", ["ctrl+i", "ctrl+m", "ctrl+h", "ctrl+j", "ctrl+s", "ctrl+z", "ctrl+enter", "a,ctrl+s"]
)
def test_keys_that_terminals_eat_are_refused(key: str) -> None:
    with pytest.raises(UsageError, match="never reaches a program"):
        check_keys({"app.quit": key}, "here")


@pytest.mark.parametrize(
    "key", ["nonsense", "ctrl+", "", "a b", "f99", "Enter", "\x1b", "ctrl+nonsense", "a,,b"]
)
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="is no key"):
        check_keys({"app.quit": key}, "here")


@pytest.mark.parametrize(
    "key", ["a", "Z", "ß", "?", "slash", "comma", "f12", "ctrl+g", "alt+x", "enter", "pagedown"]
)
def test_keys_that_are_taken(key: str) -> None:
    assert check_keys({"app.quit": key}, "here") == {"app.quit": key}


def test_an_id_that_is_not_known_says_what_was_meant() -> None:
    with pytest.raises(UsageError, match=r"'runs\.srot'") as caught:
        check_keys({"runs.srot": "o"}, "here")
    assert caught.value.hint == "did you mean 'runs.sort'?"


def test_one_key_for_two_things_of_a_screen_is_refused() -> None:
    with pytest.raises(UsageError, match=r"runs\.sort and runs\.mark at once"):
        check_keys({"runs.sort": "g", "runs.mark": "f5,g"}, "here")
    assert check_keys({"runs.sort": "g", "bundles.run": "g"}, "here")


def test_wrong_keys_end_the_ui_before_it_draws(home: Path, tmp_path: Path) -> None:
    from tui_terminal import Terminal, ui_command

    write_settings(home, '[keys]\n"app.quit" = "ctrl+s"\n')
    with Terminal(tmp_path, *ui_command()) as terminal:
        assert terminal.wait_for_end() == 2
        shown = terminal.text()
    assert "error[usage]" in shown
    assert "ctrl+s" in shown


def test_everything_that_can_be_done_has_an_id_of_its_own_screen() -> None:
    ids = all_ids()
    assert {"app.quit", "section.bundles", "section.copy", "runs.sort", "dialog.close"} <= set(ids)
    assert all("." in name for name in ids)


def test_no_key_of_ours_is_one_that_terminals_eat() -> None:
    from mlbundle_tui.keys import EATEN

    eaten = {name: keys for name, keys in all_ids().items() if EATEN & set(keys.split(","))}
    assert eaten == {}


def test_a_remapped_key_is_shown_at_the_foot(home: Path) -> None:
    async def steps(pilot):
        return text_of(pilot.app).splitlines()[-1]

    foot = drive(steps, Context(load_settings()), keys={"section.help": "f6"}, size=(120, 30))
    assert "f6 Help" in foot
