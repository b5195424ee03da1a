"""What the commands about images have in common: options, and how an image is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.platforms import ACCELERATORS, ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def architecture_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--arch`; the command receives `architecture`."""
    return click.option(
        "--arch",
        "--architecture",
        "architecture",
        type=click.Choice(ARCHITECTURES),
        help="Default: that of this machine.",
    )(function)


def platform_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--arch` and `--accelerator`; the command receives `architecture`, None unless given, and `accelerator`."""
    function = architecture_option(function)
    return click.option("--accelerator", type=click.Choice(ACCELERATORS), default="cpu", show_default=True)(
        function
    )


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


def shown_digest(digest: str | None) -> str:
    """Return a digest for a table: short where a person looks, whole where a program reads."""
    if digest is None:
        return ""
    return digest[:_SHORT] if sys.stdout.isatty() else digest
