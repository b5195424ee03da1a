"""The options of `run` and `sweep` that say how load is put on: made from the table of scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.errors import UsageError
from mlbundle.wire.scenarios import FILE, FLAG, NAMES, SCENARIOS, Option

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

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
    from mlbundle.runs.own_scenarios import PLUG_IN, check_own_name, plain_name, with_set
    from mlbundle.runs.scenarios import places_in_file, read_scenario_file, scenario_options

    path = chosen.pop("scenario_file")
    given: dict[str, Any] = {}
    name = chosen.pop("scenario")
    named_in = None
    if path is not None:
        in_file, given = read_scenario_file(path)
        if name is not None and name != in_file:
            raise click.UsageError(f"--scenario {name} and the file's {in_file} are not the same")
        name, named_in = in_file, path
    name = name or "online"
    own = name.startswith(PLUG_IN)
    if not own:
        _check_name(name, named_in)
    else:
        check_own_name(name.removeprefix(PLUG_IN))
    said = _said(chosen)
    if own and said:
        option = next(iter(said))
        raise UsageError(
            f"--{option} is an option of scenarios of ours",
            hint=f"options of your own are written --set {option}=VALUE",
        )
    said = with_set(said, chosen.pop("scenario_set"))
    places = {} if path is None else {key: at for key, at in places_in_file(path).items() if key in given}
    # What is said on the command line is newer than the file, however its names are written there.
    newer = {plain_name(option) for option in said}
    kept = {key: value for key, value in given.items() if plain_name(key) not in newer}
    if own:
        return name.removeprefix(PLUG_IN), {**kept, **said}
    return name, scenario_options(name, {**kept, **said}, places)


def _said(chosen: dict[str, Any]) -> dict[str, Any]:
    """Take the options of scenarios out of a command's arguments; returns those that were given."""
    found = {}
    for key in [key for key in chosen if key.startswith(_PREFIX)]:
        value = chosen.pop(key)
        if value is not None and value is not False:
            found[key.removeprefix(_PREFIX).replace("_", "-")] = value
    return found


def _check_name(name: str, named_in: Path | None) -> None:
    names = [spec.name for spec in SCENARIOS]
    if name in names:
        return
    import difflib

    from mlbundle.runs.own_scenarios import PLUG_IN

    close = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise UsageError(
        f"unknown scenario {name!r}",
        where=None if named_in is None else str(named_in),
        hint=f"{meant}one of: {', '.join(names)}; one of your own is written {PLUG_IN}NAME",
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
    return click.option(
        f"--{option.name}",
        name,
        metavar=option.kind.upper(),
        help=option.help + whose,
        shell_complete=_completing(option),
    )


def _completing(option: Option) -> Callable[..., list[CompletionItem]]:
    """Return what completes an option of a few choices, after a comma where it takes a list of them."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if option.kind == FILE:
            return [CompletionItem(incomplete, type="file")]
        before, comma, begun = incomplete.rpartition(",") if option.kind == NAMES else ("", "", incomplete)
        return [
            CompletionItem(f"{before}{comma}{choice}")
            for choice in option.choices
            if choice.startswith(begun) and choice not in before.split(",")
        ]

    return complete


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(spec.name, help=spec.summary) for spec in SCENARIOS if spec.name.startswith(incomplete)
    ]
