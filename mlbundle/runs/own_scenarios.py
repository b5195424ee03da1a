"""Scenarios of a user's own, `plugin:NAME`, and their options, which nobody here knows: `--set NAME=VALUE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError
from mlbundle.wire.scenarios import BY_NAME, SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLUG_IN = "plugin:"
"""What the name of a scenario of one's own begins with, where it is written."""
GROUP = "mlbundle.scenarios"
"""The group of entry points in which packages register scenarios."""


def check_own_name(name: str) -> None:
    """Raise UsageError for a name (without `plugin:`) that no scenario of one's own can have."""
    if not name.strip():
        raise UsageError("the scenario of your own has no name", hint=f"write {PLUG_IN}NAME")
    if name in BY_NAME:
        raise UsageError(f"{name} is a scenario of ours", hint=f"write --scenario {name}")


def with_set(said: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """Return options, those of `--set` (`NAME=VALUE`) among them.

    Raises UsageError for what is not written so, and for an option that is said twice.
    """
    found, names = dict(said), {plain_name(option) for option in said}
    for text in sets:
        option, equals, value = text.partition("=")
        if not equals or not option:
            raise UsageError(f"--set {text}: write NAME=VALUE", hint="like --set size=10")
        if plain_name(option) in names:
            raise UsageError(f"--set {text}: {option} is said twice", hint="leave one of them out")
        names.add(plain_name(option))
        found[option] = value
    return found


def plain_name(option: str) -> str:
    """Return the name of an option as users write it, for that or for its key in a job."""
    keys = {one.key: one.name for spec in SCENARIOS for one in spec.options}
    return keys.get(option, option.replace("_", "-"))


def installed_scenarios() -> list[str]:
    """Return the scenarios of others that are installed beside us: what a worker knows is another environment's."""
    from importlib.metadata import entry_points

    return sorted({point.name for point in entry_points(group=GROUP)} - set(BY_NAME))
