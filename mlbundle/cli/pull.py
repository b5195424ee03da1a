"""`mlbundle pull`: bring a bundle from a registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlbundle.cli import output, units
from mlbundle.cli.add import show_entry
from mlbundle.cli.network import network, network_options
from mlbundle.cli.progress import byte_progress

if TYPE_CHECKING:
    from mlbundle.runs.exchange import PullPlan


@click.command("pull")
@click.argument("repository")
@click.option(
    "--images",
    type=click.Choice(["auto", "all", "none"]),
    default="auto",
    show_default=True,
    help="Embedded images to bring; auto: those for this machine's architecture.",
)
@click.option("-o", "--output", "target", type=click.Path(path_type=Path), help="Write it as a file, too.")
@click.option("-f", "--force", is_flag=True, help="Replace an existing file.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be fetched; fetch documents only.")
@network_options
@output.format_options("table", "json")
def command(
    *,
    repository: str,
    images: str,
    target: Path | None,
    force: bool,
    dry_run: bool,
    plain_http: bool,
    ca_file: Path | None,
    output_format: str,
) -> None:
    """Bring a bundle from a registry into the library, checking every byte.

    REPOSITORY is HOST/NAME:VERSION or HOST/NAME@DIGEST. What is here is not fetched again, and a transfer that
    broke off goes on where it was. A part of a bundle: `mlbundle unpack oci://… --filter`.
    """
    from mlbundle.bundle.assemble import write_archive
    from mlbundle.config import load_settings
    from mlbundle.errors import UsageError
    from mlbundle.registry.reference import parse
    from mlbundle.runs.exchange import Pull
    from mlbundle.runs.opening import client_of, open_entry

    settings, reach = load_settings(), network(plain_http=plain_http, ca_file=ca_file)
    reference = parse(repository)
    if target is not None and target.exists() and not force:
        raise UsageError(f"{target} exists already", hint="--force replaces it")
    with client_of(reference, reach) as client:
        pull = Pull(client, reference, settings, images=images)
        plan = pull.plan
        for text in plan.passed_over:
            output.warn(f"not taken: {text}")
        if dry_run:
            _show_plan(plan, output_format)
            return
        with byte_progress("pulling") as progress:
            entry = pull.fetch(progress)
    if target is not None:
        with open_entry(entry, settings) as reader, byte_progress("writing") as progress:
            write_archive(reader, target, progress, overwrite=force)
    show_entry(entry, output_format)


def _show_plan(plan: PullPlan, output_format: str) -> None:
    if output_format == "json":
        output.document({"schema": "mlbundle/pull-plan/v1", **plan.to_document()})
        return
    rows = [
        ("bundle", f"{plan.name}:{plan.version}"),
        ("manifest", plan.manifest_digest),
        ("size", units.size(plan.size_bytes)),
        ("already here", units.size(plan.here_bytes)),
        ("images", ", ".join(plan.images) or "-"),
        ("attached", str(plan.referrers)),
    ]
    output.table(("would pull", plan.reference), rows)
