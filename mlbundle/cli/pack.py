"""`mlbundle pack`: make one bundle file of a manifest and its assets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output, units
from mlbundle.cli.params import complete_reference
from mlbundle.cli.progress import byte_progress

if TYPE_CHECKING:
    from mlbundle.bundle.content import BundleContent
    from mlbundle.bundle.pack import Preview

SCHEMA = "mlbundle/pack/v1"


@click.command("pack")
@click.argument("reference", shell_complete=complete_reference)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), help="File to write  [NAME-VERSION.mlb]."
)
@click.option(
    "--framework",
    type=click.Path(path_type=Path),
    help="Framework manifest  [framework.yml beside the model's, else the built-in one that fits].",
)
@click.option("-n", "--dry-run", is_flag=True, help="Read and check everything, write nothing.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing file.")
@output.format_options("table", "json")
def command(
    *,
    reference: str,
    target: Path | None,
    framework: Path | None,
    dry_run: bool,
    force: bool,
    output_format: str,
) -> None:
    """Make one bundle file of a manifest and the assets it names.

    REFERENCE is a folder with model.yml, a model manifest, or the name of a built-in model. The same files
    give the same bytes on every machine.
    """
    from mlbundle.bundle.pack import pack, preview
    from mlbundle.runs.packing import collect, left_out
    from mlbundle.runs.references import resolve

    found = resolve(reference)
    if found.kind != "manifest":
        raise click.UsageError(f"{reference} is no folder and no manifest; it may be packed already")
    content = collect(found.path, framework)
    path = target or Path(default_name(content))
    skipped = left_out(found.path, content)
    if skipped:
        output.narrate(f"left out, as the manifest does not name them: {', '.join(skipped)}", level=1)
    result: Preview
    if dry_run:
        with byte_progress("reading") as progress:
            result = preview(content, progress)
    else:
        with byte_progress("packing") as progress:
            result = pack(content, path, progress, overwrite=force)
    _show(content, path, result, dry_run=dry_run, output_format=output_format)


def default_name(content: BundleContent) -> str:
    """Return `<name>-<version>.mlb` with characters that are at home in a file name."""
    return (
        re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{content.model_name}-{content.model_version}").lstrip("-.")
        + ".mlb"
    )


def _show(content: BundleContent, path: Path, result: Preview, *, dry_run: bool, output_format: str) -> None:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "file": str(path),
        "written": not dry_run,
        "model": {"name": content.model_name, "version": content.model_version},
        "framework": {"name": content.framework_name, "version": content.framework_version},
        "manifest_digest": result.manifest_digest,
        "config_digest": result.config_digest,
        "set_digest": result.set_digest,
        "size": result.size_bytes,
        "files": [{"path": e.path, "size": e.size_bytes, "sha256": e.sha256} for e in result.files],
    }
    if output_format == "json":
        output.document(document)
        return
    rows = [
        ("file", f"{path} (not written: dry run)" if dry_run else str(path)),
        ("model", f"{content.model_name} {content.model_version}"),
        ("framework", f"{content.framework_name} {content.framework_version}"),
        ("manifest", result.manifest_digest),
        ("set", result.set_digest),
        ("size", units.size(result.size_bytes)),
        ("files", str(len(result.files))),
    ]
    output.table(("bundle", ""), rows)
    if dry_run:
        output.data("")
        output.table(
            ("path", "size", "sha256"), [(e.path, units.size(e.size_bytes), e.sha256) for e in result.files]
        )
