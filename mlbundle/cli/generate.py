"""`mlbundle generate`: make a model that is too big to ship."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.wording import units

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mlbundle.config import Settings
    from mlbundle.runs.generate import ModelRecipe, Order
    from mlbundle.runs.generated_folder import GeneratedFile

SCHEMA = "mlbundle/generate/v1"
LIST_SCHEMA = "mlbundle/recipes/v1"


class _Setting(click.ParamType[tuple[str, int]]):
    """NAME=NUMBER."""

    name = "setting"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return the name and the number, which is from 0 to 2^31 - 1."""
        name, _, number = str(value).partition("=")
        if (
            not name
            or not number.isascii()
            or not number.isdecimal()
            or len(number) > 10
            or int(number) >> 31
        ):
            self.fail(f"{value!r} is no setting; write for example width=16", param, ctx)
        return name, int(number)


class _NamedPython(click.ParamType[tuple[str, Path]]):
    """NAME=PATH."""

    name = "python"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Path]:
        """Return the name of the framework and the path."""
        name, _, path = str(value).partition("=")
        if not name or not path:
            self.fail(f"{value!r} names no Python; write for example torch=env/bin/python", param, ctx)
        return name, Path(path)


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of recipes."""
    from click.shell_completion import CompletionItem

    from mlbundle.resources import generated_models

    return [CompletionItem(name) for name in generated_models() if name.startswith(incomplete)]


@click.command("generate")
@click.argument("name", required=False, shell_complete=_complete)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder to make  [named like the model].",
)
@click.option(
    "--framework",
    "frameworks",
    multiple=True,
    metavar="NAME",
    help="Make it for this framework; may be repeated  [all].",
)
@click.option(
    "--set",
    "settings",
    type=_Setting(),
    multiple=True,
    metavar="NAME=NUMBER",
    help="Change a setting of the recipe.",
)
@click.option(
    "--python",
    "pythons",
    type=_NamedPython(),
    multiple=True,
    metavar="NAME=PATH",
    help="Use this Python for a framework  [a hash-locked environment, made on first use].",
)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be made and with what; make nothing.")
@click.option(
    "-f", "--force", is_flag=True, help="Replace a folder that was generated and not changed since."
)
@output.format_options("table", "json")
def command(
    *,
    name: str | None,
    folder: Path | None,
    frameworks: tuple[str, ...],
    settings: tuple[tuple[str, int], ...],
    pythons: tuple[tuple[str, Path], ...],
    dry_run: bool,
    force: bool,
    output_format: str,
) -> None:
    """Make a model that is too big to ship: a folder with its manifest, to run or to pack.

    Without NAME, list what can be made. The same settings give the same weights on every machine.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.generate import find_model_recipe, generate, order, recipes

    if name is None:
        if folder or frameworks or settings or pythons or dry_run or force:
            raise click.UsageError("say which model: `mlbundle generate` alone lists them")
        _list(recipes(), output_format)
        return
    configured = load_settings()
    recipe = find_model_recipe(name)
    target = folder if folder is not None else Path(recipe.name)
    wanted = order(
        recipe,
        folder=target,
        frameworks=frameworks,
        settings=dict(settings),
        pythons=dict(pythons),
        replace=force,
    )
    if dry_run:
        _print(wanted, configured, (), output_format, written=False)
        return
    files = generate(wanted, configured, output.narrate, lambda line: output.narrate(f"  {line}", level=1))
    _print(wanted, configured, files, output_format, written=True)
    output.narrate(f"`mlbundle run {target}` runs it, `mlbundle pack {target}` makes one file of it")


def _list(known: list[ModelRecipe], output_format: str) -> None:
    if output_format == "json":
        entries = [
            {
                "name": recipe.name,
                "description": recipe.description,
                "frameworks": [step.name for step in recipe.frameworks],
                "settings": recipe.defaults,
                "size": _size(recipe),
            }
            for recipe in known
        ]
        output.document({"schema": LIST_SCHEMA, "recipes": entries})
        return
    rows = [
        (r.name, ", ".join(step.name for step in r.frameworks), units.size(_size(r)), r.description)
        for r in known
    ]
    output.table(("name", "frameworks", "size", "description"), rows)


def _size(recipe: ModelRecipe) -> int:
    return recipe.prepare.size_bytes + sum(step.size_bytes for step in recipe.frameworks)


def _print(
    wanted: Order, settings: Settings, files: tuple[GeneratedFile, ...], output_format: str, *, written: bool
) -> None:
    from mlbundle.runs.generate import python_of

    pythons = {
        step.name: str(python_of(step, wanted, settings, lambda _line: None, make=False)[0])
        for step in wanted.frameworks
    }
    size_bytes = sum(file.size_bytes for file in files) if written else wanted.size_bytes
    if output_format == "json":
        output.document({
            "schema": SCHEMA,
            "name": wanted.recipe.name,
            "folder": str(wanted.folder),
            "written": written,
            "settings": dict(wanted.settings),
            "pythons": pythons,
            "size": size_bytes,
            "files": [{"path": f.path, "size": f.size_bytes, "sha256": f.sha256} for f in files],
        })  # fmt: skip
        return
    rows = [
        ("folder", str(wanted.folder) if written else f"{wanted.folder} (not written: dry run)"),
        ("settings", ", ".join(f"{name} {value}" for name, value in wanted.settings.items())),
        ("size", "depends on the settings" if size_bytes is None else units.size(size_bytes)),
    ]
    rows += [(name, f"made with {python}") for name, python in pythons.items()]
    output.table(("model", wanted.recipe.name), rows)
