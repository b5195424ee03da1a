"""The options of `run` and `sweep` that say how load is put on: made from the table of scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.wire.scenarios import FLAG, SCENARIOS, Option

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

PLUG_IN = "plugin:"
_PREFIX = "scenario_option_"


def scenario_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--scenario`, every option that a scenario has, `--set` and `--scenario-file`; see `chosen_scenario`."""
    options = _all_options()
    for name in reversed(options):
        function = _click_option(*options[name])(function)
    function = click.option(
        "--set",
        "scenario_set",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of the scenario; for those that have no option of their own here.",
    )(function)
    function = click.option(
        "--scenario-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Scenario and options from YAML: `scenario: poisson`, then its options by name.",
    )(function)
    return click.option(
        "--scenario",
        metavar="NAME",
        shell_complete=_complete,
        help=f"How load is put on: {', '.join(spec.name for spec in SCENARIOS)}, or plugin:NAME.  [default: online]",
    )(function)


def chosen_scenario(chosen: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Take the scenario's arguments out of a command's; returns its name and the options of a job.

    Raises UsageError and what `read_scenario_file` raises.
    """
    from mlbundle.runs.scenarios import read_scenario_file, scenario_options

    path = chosen.pop("scenario_file")
    given: dict[str, Any] = {}
    name = chosen.pop("scenario")
    if path is not None:
        in_file, given = read_scenario_file(path)
        if name is not None and name != in_file:
            raise click.UsageError(f"--scenario {name} and the file's {in_file} are not the same")
        name = in_file
    for key in [key for key in chosen if key.startswith(_PREFIX)]:
        value = chosen.pop(key)
        if value is not None and value is not False:
            given[key.removeprefix(_PREFIX).replace("_", "-")] = value
    for text in chosen.pop("scenario_set"):
        option, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set {text}: write NAME=VALUE")
        given[option] = value
    name = name or "online"
    if name.startswith(PLUG_IN):
        return name.removeprefix(PLUG_IN), given
    _check_name(name)
    return name, scenario_options(name, given)


def _check_name(name: str) -> None:
    names = [spec.name for spec in SCENARIOS]
    if name in names:
        return
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise click.UsageError(
        f"unknown scenario {name!r}{meant} One of: {', '.join(names)}; one of your own is written {PLUG_IN}NAME"
    )


def _all_options() -> dict[str, tuple[Option, list[str]]]:
    """Return each option by name, with the scenarios that have it; in the order in which they come."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for spec in SCENARIOS:
        for option in spec.options:
            found.setdefault(option.name, (option, []))[1].append(spec.name)
    return found


def _click_option(option: Option, scenarios: list[str]) -> Callable[..., Any]:
    whose = "" if len(scenarios) == len(SCENARIOS) else f"  [{', '.join(scenarios)}]"
    name = f"{_PREFIX}{option.name.replace('-', '_')}"
    if option.kind == FLAG:
        return click.option(f"--{option.name}", name, is_flag=True, help=option.help + whose)
    return click.option(f"--{option.name}", name, metavar=option.kind.upper(), help=option.help + whose)


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(spec.name, help=spec.summary) for spec in SCENARIOS if spec.name.startswith(incomplete)
    ]
