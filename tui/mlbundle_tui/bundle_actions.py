"""What is done with one bundle: its manifest in an editor, its bytes verified, the command that mends it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import ToolMissing, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import App

    from mlbundle.config import Settings
    from mlbundle.runs.network import Network
    from mlbundle.runs.readiness import Mend
    from mlbundle.runs.shelf import BundleRow


def verified_text(
    row: BundleRow, settings: Settings, network: Network | None, progress: Callable[[int, int], None]
) -> str:
    """Check every byte of a bundle, and return what was found. Raises IntegrityError, what opening it raises."""
    from mlbundle.bundle.verify import verify_reader
    from mlbundle.runs.bundle_detail import open_row
    from mlbundle.wording import units

    with open_row(row, settings, network) as reader:
        found = verify_reader(reader, progress)
    lines = [
        f"every byte of {found.name} {found.version} is what it should be",
        "",
        f"{len(found.files)} files, {units.size(found.size_bytes)}",
        f"manifest {found.manifest_digest}",
        f"set      {found.set_digest}",
        *(f"image    {image}" for image in found.images),
        *(f"attached {kind}" for kind in found.referrers),
        "",
        f"$ mlbundle verify {shlex.quote(row.reference)}{network_options(network)}",
    ]
    return "\n".join(lines)


def mend_for(mend: Mend, row: BundleRow, network: Network | None) -> Mend:
    """Return a mend that is about this bundle: a run makes its environment, its registry is reached in its way."""
    if mend.kind == "environment":
        command = f"mlbundle run {shlex.quote(row.reference)} --runtime process --framework {mend.framework}"
        return replace(mend, command=command)
    if mend.kind == "bundle" and network is not None:
        ca_file = None if network.ca_file is None else str(network.ca_file)
        command = mend.command + network_options(network)
        return replace(mend, command=command, plain_http=network.plain_http, ca_file=ca_file)
    return mend


async def asked_for(app: App[Any], mend: Mend) -> Mend | None:
    """Ask on what an image is built, and with which network; None when it is not wanted. In a worker only.

    What is no build is returned as it is.
    """
    if mend.kind != "build":
        return mend
    from mlbundle.runs.readiness import built_with
    from mlbundle_tui.screens.dialogs import ask_lines

    lines = {
        "base_image": "base image: empty takes the one that the recipe names",
        "network": "network, such as host: empty takes none if the base image has a Python",
    }
    found = await ask_lines(
        app,
        f"{mend.title}?",
        lines,
        lambda values: f"{mend.about}\n\n$ {built_with(mend, **values).command}",
        yes="builds",
    )
    return None if found is None else built_with(mend, **found)


def network_options(network: Network | None) -> str:
    """Return the options that say how a registry is reached."""
    if network is None:
        return ""
    file = f" --ca-file {shlex.quote(str(network.ca_file))}" if network.ca_file is not None else ""
    return f"{' --plain-http' if network.plain_http else ''}{file}"


def copy_text(row: BundleRow) -> str:
    """Return why a copy of a manifest is edited, and how one gets at something that can be changed."""
    gone = "What is written is gone when the editor is closed, unless it is saved elsewhere."
    if row.where == "built in":
        return f"{row.name} comes with mlbundle. {gone}"
    way = f"mlbundle unpack {shlex.quote(row.reference)}"
    return f"{row.name} is a bundle, which nothing changes. {gone}\n\n$ {way}\nmakes a folder of it, to be changed."


def edit(suspend: Callable[[], Any], text: str, path: Path | None) -> None:
    """Open a file, or else a copy of `text`, in $VISUAL, $EDITOR or vi. Raises ToolMissing, UsageError."""
    import os
    import subprocess
    import tempfile

    from textual.app import SuspendNotSupported

    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="mlbundle-edit-") as folder:
        if path is None:
            path = Path(folder) / "model.yml"
            path.write_text(text, "utf-8")
        try:
            with suspend():
                subprocess.run([*command, str(path)], check=False)
        except OSError as error:
            raise ToolMissing(
                f"the editor can't be started: {error}", hint="set EDITOR to one that is installed"
            ) from error
        except SuspendNotSupported as error:
            raise UsageError(
                "this terminal can't be handed to an editor", hint=f"open {path} yourself"
            ) from error
