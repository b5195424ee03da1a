"""Types of options and completion of arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlbundle.errors import UsageError
from mlbundle.runs.quantities import parse_bytes, parse_cpus, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem


class _Quantity(click.ParamType[float]):
    """A text that a function reads; numbers are in the base unit already."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number in the base unit; fails for anything else, zero included."""
        if isinstance(value, int | float):
            return value
        try:
            return self._parse(str(value))
        except UsageError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)


class _Cpus(click.ParamType[tuple[int, ...]]):
    """A list of CPU numbers."""

    name = "cpus"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers in order, each once."""
        try:
            return parse_cpus(str(value))
        except UsageError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)


SECONDS = _Quantity("duration", parse_duration_s)
BYTES = _Quantity("size", parse_bytes)
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
    """Complete `latest` and the ids of runs, with what was run for shells that show it."""
    from click.shell_completion import CompletionItem

    from mlbundle.config import load_settings
    from mlbundle.runs.catalog import list_runs, run_ids

    settings = load_settings()
    said = {row["run_id"]: f"{row['model']} {row['framework']}" for row in list_runs(settings)}
    latest = [CompletionItem("latest", help=next(iter(said.values()), None))]
    runs = [CompletionItem(run_id, help=said.get(run_id)) for run_id in run_ids(settings, incomplete)]
    return [*(latest if said and "latest".startswith(incomplete) else []), *runs]
