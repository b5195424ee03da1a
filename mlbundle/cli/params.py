"""Types of options and completion of arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SECONDS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


class _Quantity(click.ParamType[float]):
    """A number with a unit."""

    def __init__(self, name: str, units: dict[str, float] | dict[str, int], example: str) -> None:
        self.name = name
        self._units = units
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number in the base unit; fails for anything else, zero included."""
        if isinstance(value, int | float):
            return float(value)
        match = _QUANTITY.match(str(value))
        factor = self._units.get(match.group(2).lower()) if match else None
        if match is None or factor is None or float(match.group(1)) == 0:
            self.fail(f"{value!r} is no {self.name}; write for example {self._example}", param, ctx)
        return float(match.group(1)) * factor


class _Seconds(_Quantity):
    """A duration in seconds."""


class _Bytes(_Quantity):
    """A size in bytes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return whole bytes."""
        return int(super().convert(value, param, ctx))


class _Cpus(click.ParamType[tuple[int, ...]]):
    """A list of CPU numbers."""

    name = "cpus"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers in order, each once."""
        numbers: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
            if match is None:
                self.fail(f"{value!r} is no list of CPUs; write for example 0 or 0,2 or 0-3", param, ctx)
            first, last = int(match.group(1)), int(match.group(2) or match.group(1))
            if last < first:
                self.fail(f"{part!r} counts backwards; write for example 0-3", param, ctx)
            numbers.update(range(first, last + 1))
        return tuple(sorted(numbers))


SECONDS = _Seconds("duration", _SECONDS, "3s, 500ms or 2m")
BYTES = _Bytes("size", _BYTES, "512MiB or 2GiB")
CPUS = _Cpus()


def complete_reference(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete built-in names, names in the library, and files as the shell does."""
    from click.shell_completion import CompletionItem

    from mlbundle.resources import built_in_models

    names = [CompletionItem(name) for name in built_in_models() if name.startswith(incomplete)]
    return [*names, *complete_library(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


def complete_library(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names in the library."""
    from click.shell_completion import CompletionItem

    from mlbundle.config import load_settings
    from mlbundle.store.library import Library

    labels = dict.fromkeys(entry.label for entry in Library(load_settings().data_dir).entries())
    return [CompletionItem(label) for label in labels if label.startswith(incomplete)]


def complete_variant(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the variants of the built-in model or the manifest that the command names, else our frameworks."""
    from click.shell_completion import CompletionItem

    from mlbundle.resources import built_in_frameworks
    from mlbundle.runs.catalog import variants_of

    # An option that still lacks its value ends the parsing before arguments get their names.
    reference = ctx.params.get("reference") or next(iter(ctx.args), "")
    names = variants_of(str(reference)) or list(built_in_frameworks())
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_running(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of runs that go on."""
    from click.shell_completion import CompletionItem

    from mlbundle.config import load_settings
    from mlbundle.runs.running import running_runs

    runs = running_runs(load_settings())
    return [CompletionItem(run.run_id) for run in runs if run.run_id.startswith(incomplete)]


def complete_any_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of runs, those that go on first."""
    return [*complete_running(ctx, param, incomplete), *complete_run(ctx, param, incomplete)]


def complete_run(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the ids of runs."""
    from click.shell_completion import CompletionItem

    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import run_ids

    return [CompletionItem(run_id) for run_id in run_ids(load_settings(), incomplete)]
