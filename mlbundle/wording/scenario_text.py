"""The scenario of a record as a user would write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlbundle.runs.words import seconds
from mlbundle.wire.scenarios import BY_NAME, SECONDS, WARM_UP, Option

if TYPE_CHECKING:
    from collections.abc import Mapping


def scenario_text(scenario: Mapping[str, Any]) -> str:
    """Return name and options: `poisson  --rate 400 --duration 3s`; those of an unknown scenario as `--set`."""
    name, options = str(scenario["name"]), scenario.get("options") or {}
    spec = BY_NAME.get(name)
    known = {} if spec is None else {option.key: option for option in spec.options}
    texts = [_option(known[key], options[key]) for key in known if key in options]
    texts += [f"--set {key}={value}" for key, value in sorted(options.items()) if key not in known]
    return "  ".join([name, " ".join(text for text in texts if text)]).rstrip()


def _option(option: Option, value: Any) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f"--{option.name}"
    return f"--{option.name} {_value(option, value)}"


def _value(option: Option, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    number = isinstance(value, int | float)
    if number and option.kind in {SECONDS, WARM_UP}:
        return seconds(value)
    return f"{value:.10g}" if number else str(value)
