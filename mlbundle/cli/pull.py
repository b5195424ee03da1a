"""`mlbundle pull`: bring a bundle from a registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.add import entry_document, warn_of_takeover
from mlbundle.cli.network import network, network_options
from mlbundle.cli.progress import byte_progress
from mlbundle.wording import units

if TYPE_CHECKING:
    from mlbundle.config import Settings
    from mlbundle.registry.reference import RegistryReference
    from mlbundle.runs.exchange import PullPlan
    from mlbundle.store.entries import LibraryEntry

_MAX_WARNINGS = 10


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
    from mlbundle.runs.exchange import Pull
    from mlbundle.runs.opening import client_of, open_entry
    from mlbundle.store.library import Library

    settings, reach = load_settings(), network(plain_http=plain_http, ca_file=ca_file)
    reference = _reference(repository, settings)
    if target is not None and target.exists() and not force:
        raise UsageError(f"{target} exists already", hint="--force replaces it")
    with client_of(reference, reach) as client:
        pull = Pull(client, reference, settings, images=images)
        plan = pull.plan
        _warn(plan.passed_over)
        if dry_run:
            _show_plan(plan, output_format)
            return
        before, _ = Library(settings.data_dir).scan()
        with byte_progress("pulling") as progress:
            try:
                entry = pull.fetch(progress)
            except KeyboardInterrupt:
                output.narrate("what has arrived is kept: the same command goes on where it stopped")
                raise
    if target is not None:
        with open_entry(entry, settings) as reader, byte_progress("writing") as progress:
            write_archive(reader, target, progress, overwrite=force)
    _show(entry, plan, output_format)
    warn_of_takeover(before, entry)


def _reference(text: str, settings: Settings) -> RegistryReference:
    """Return the reference that a user wrote; raises UsageError, which says so when it is no registry's."""
    from mlbundle.errors import ReferenceNotFound, UsageError
    from mlbundle.registry.reference import SCHEME, looks_like_registry, parse
    from mlbundle.runs.references import WEB_SCHEMES
    from mlbundle.store.library import Library

    if text.startswith(WEB_SCHEMES) or (not text.startswith(SCHEME) and Path(text).exists()):
        raise UsageError(
            f"{text} is no repository of a registry",
            hint=f"`mlbundle add {text}` takes it into the library; a repository is written oci://HOST/NAME",
        )
    if not looks_like_registry(text):
        try:
            entry = Library(settings.data_dir).find(text)
        except ReferenceNotFound:
            return parse(text)
        raise UsageError(
            f"{entry.label} is in the library already",
            where=entry.source,
            hint="to bring it from a registry again, name the repository: oci://HOST/NAME:TAG",
        )
    return parse(text)


def _warn(passed_over: tuple[str, ...]) -> None:
    for text in passed_over[:_MAX_WARNINGS]:
        output.warn(f"not taken: {text}")
    if len(passed_over) > _MAX_WARNINGS:
        output.warn(f"not taken: {len(passed_over) - _MAX_WARNINGS} more")


def _show(entry: LibraryEntry, plan: PullPlan, output_format: str) -> None:
    fetched_bytes = plan.size_bytes - plan.here_bytes
    if output_format == "json":
        output.document({
            **entry_document(entry),
            "fetched_bytes": fetched_bytes,
            "already_here": plan.here_bytes,
            "passed_over": list(plan.passed_over),
        })  # fmt: skip
        return
    rows = [
        ("name", entry.label),
        ("manifest", entry.manifest_digest),
        ("set", entry.set_digest),
        ("size", units.size(entry.size_bytes)),
        ("fetched", f"{units.size(fetched_bytes)}; {units.size(plan.here_bytes)} were already here"),
        ("from", entry.source),
    ]
    output.table(("in the library", ""), rows)


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
