"""`mlbundle push`: send a bundle to a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference
from mlbundle.cli.progress import byte_progress
from mlbundle.wording import units

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.runs.exchange import Pushed


@click.command("push")
@click.argument("reference", shell_complete=complete_reference)
@click.argument("repository")
@click.option("--without-images", is_flag=True, help="Leave embedded images out.")
@click.option("--mirror-images", is_flag=True, help="Copy the images that the bundle pins there, too.")
@click.option(
    "--mount-from", metavar="REPOSITORY", help="Repository of the same registry that has some blobs."
)
@click.option("-f", "--force", is_flag=True, help="Replace what the tag names now.")
@click.option(
    "-n", "--dry-run", is_flag=True, help="Check the bundle and say what would be sent; send nothing."
)
@network_options
@output.format_options("table", "json")
def command(
    *,
    reference: str,
    repository: str,
    without_images: bool,
    mirror_images: bool,
    mount_from: str | None,
    force: bool,
    dry_run: bool,
    plain_http: bool,
    ca_file: Path | None,
    output_format: str,
) -> None:
    """Send a bundle to a registry.

    REFERENCE is what `mlbundle inspect` takes, REPOSITORY is HOST/NAME with or without :TAG (the version otherwise)
    or HOST/ alone, where the model's name is the repository. Blobs that are there are not sent; the tag comes last.
    A tag that names another bundle stays as it is, unless with --force.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.exchange import push, push_target
    from mlbundle.runs.mirror import mirror
    from mlbundle.runs.opening import client_of, open_reference

    settings, reach = load_settings(), network(plain_http=plain_http, ca_file=ca_file)
    with open_reference(reference, settings, reach) as reader:
        target = push_target(repository, reader, images=not without_images)
        if dry_run:
            _show_plan(str(target), reader.size_bytes, len(reader.structure.blobs()), output_format)
            return
        with client_of(target, reach, to_push=True) as client:
            with byte_progress("pushing") as progress:
                pushed = push(
                    reader,
                    client,
                    target,
                    progress,
                    images=not without_images,
                    from_repository=mount_from,
                    force=force,
                )
            mirrored = mirror(reader, client, reach, report=output.narrate) if mirror_images else ()
    if output_format == "json":
        output.document({**pushed.to_document(), "mirrored": list(mirrored)})
        return
    rows = [
        ("pushed", pushed.reference),
        ("content", _counts(pushed)),
        ("images", ", ".join(pushed.images) or "-"),
        ("attached", str(pushed.referrers)),
        *(("mirrored", name) for name in mirrored),
    ]
    output.table(("bundle", ""), rows)


def _counts(pushed: Pushed) -> str:
    return (
        f"{pushed.blobs} blobs, {units.size(pushed.size_bytes)};"
        f" {pushed.sent_blobs} sent, {units.size(pushed.sent_bytes)}"
    )


def _show_plan(target: str, size_bytes: int, blobs: int, output_format: str) -> None:
    if output_format == "json":
        output.document(
            {"schema": "mlbundle/push-plan/v1", "reference": target, "size": size_bytes, "blobs": blobs}
        )
        return
    output.table(
        ("would push", ""), [("to", target), ("blobs", f"{blobs}, {units.size(size_bytes)} at most")]
    )
