"""What the commands about images have in common: options, and how an image is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.platforms import ACCELERATORS, ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from click.shell_completion import CompletionItem

    from mlbundle.manifest.framework import FrameworkManifest

_SHORT = len("sha256:") + 12


def complete_framework(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of frameworks: built-in ones and those of the images lock."""
    from click.shell_completion import CompletionItem

    from mlbundle.config import load_settings
    from mlbundle.resources import built_in_frameworks
    from mlbundle.runtime.lock import read_images_lock

    names = {
        *built_in_frameworks(),
        *(key.framework for key in read_images_lock(load_settings().images_lock)),
    }
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def architecture_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--arch` with this help; the command receives `architecture`."""
    return click.option(
        "--arch", "--architecture", "architecture", type=click.Choice(ARCHITECTURES), help=text
    )


def platform_options(verb: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--arch` and `--accelerator`; the command receives `architecture`, None unless given, and `accelerator`.

    `verb` is what the command does with the image.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(
            "--accelerator",
            type=click.Choice(ACCELERATORS),
            default="cpu",
            show_default=True,
            help=f"{verb} the image for this accelerator.",
        )(function)
        return architecture_option(f"{verb} the image for this architecture; default: this machine's.")(
            function
        )

    return decorate


def manifest_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--framework-manifest`; the command receives `framework_manifests`."""
    return click.option(
        "--framework-manifest",
        "framework_manifests",
        multiple=True,
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="A framework manifest of your own beside the built-in ones; may be given again.",
    )(function)


def load_manifests(paths: Sequence[Path]) -> list[FrameworkManifest]:
    """Return the framework manifests in files; raises ManifestInvalid."""
    from mlbundle.manifest.load import load_framework

    return [load_framework(path).require() for path in paths]


def show_pairs(rows: Iterable[tuple[str, object]]) -> None:
    """Write names and values in two columns, which need no heading."""
    texts = [(name, "" if value is None else str(value).replace("\n", "\\n")) for name, value in rows]
    width = max((len(name) for name, _ in texts), default=0)
    for name, value in texts:
        output.data(f"{name.ljust(width)}  {value}".rstrip())


def shown_digest(digest: str | None) -> str:
    """Return a digest for a table: short where a person looks, whole where a program reads."""
    if digest is None:
        return ""
    return digest[:_SHORT] if sys.stdout.isatty() else digest
