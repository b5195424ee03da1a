"""`mlbundle inspect`: show what a bundle holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference
from mlbundle.wording import units

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.bundle.inspect import Inspection


_ATTACHMENTS = {
    "https://sigstore.dev/cosign/sign/v1": "signature",
    "application/vnd.mlbundle.signature.ssh.v1": "signature (SSH)",
    "https://slsa.dev/provenance/v1": "provenance, signed",
    "https://cyclonedx.org/bom": "bill of materials, signed",
    "application/vnd.cyclonedx+json": "bill of materials",
    "application/vnd.in-toto+json": "provenance",
}


@click.command("inspect")
@click.argument("reference", shell_complete=complete_reference)
@click.option("--files", "show_files", is_flag=True, help="List every file with its size and sha256.")
@click.option(
    "--attachment",
    metavar="DIGEST",
    help="Print what is attached under this digest (its first digits will do): a statement, a bill of materials.",
)
@network_options
@output.format_options("table", "json")
def command(
    *,
    reference: str,
    show_files: bool,
    attachment: str | None,
    plain_http: bool,
    ca_file: Path | None,
    output_format: str,
) -> None:
    """Show what a bundle holds, without trusting or unpacking it.

    REFERENCE is a file, a name in the library, a repository (oci://HOST/NAME:VERSION), an https address, or a
    manifest. Of a bundle far away only the documents are fetched. Structure and documents are checked;
    `mlbundle verify` checks every byte.
    """
    from mlbundle.bundle.inspect import inspect_reader
    from mlbundle.config import load_settings
    from mlbundle.runs.opening import open_found
    from mlbundle.runs.references import resolve

    settings = load_settings()
    found_at = resolve(reference, settings)
    far = found_at.kind in {"registry", "web"}
    reach = network(plain_http=plain_http, ca_file=ca_file)
    whole = not far or attachment is not None
    with open_found(found_at, settings, reach, whole=whole, report=output.warn) as reader:
        if attachment is not None:
            from mlbundle.runs.attesting import attachment as read_attachment

            output.raw(read_attachment(reader, attachment))
            return
        found = inspect_reader(reader, pickles=not far)
    if output_format == "json":
        output.document(found.to_document())
        return
    _show(found)
    if show_files:
        output.data("")
        rows = [(e.path, units.size(e.size_bytes), f"{e.mode:04o}", e.sha256) for e in found.files]
        output.table(("path", "size", "mode", "sha256"), rows)
    warn_of_pickles(found.pickles)


def warn_of_pickles(pickles: tuple[str, ...] | None) -> None:
    """Say which files would run code if somebody loaded them."""
    if pickles:
        output.warn(
            f"{len(pickles)} file(s) hold Python pickles: {', '.join(pickles[:5])}",
            hint="a pickle runs code when it is loaded; mlbundle never loads one",
        )


def attachment_name(kind: str) -> str:
    """Return what people call a kind of attachment; nothing is said about whether it holds."""
    return _ATTACHMENTS.get(kind, kind)


def _show(found: Inspection) -> None:
    bundle = found.bundle
    rows = [
        ("model", f"{bundle.model_name} {bundle.model_version}"),
        ("framework", f"{bundle.framework_name} {bundle.framework_version}"),
        *(("framework", f"{name} {version}") for name, version in bundle.frameworks),
        ("description", found.description or "-"),
        ("licence", found.license or "-"),
        ("manifest", found.manifest_digest),
        ("set", found.bundle.set_digest),
        ("size", units.size(found.size_bytes)),
        ("unpacked", f"{units.size(bundle.unpacked_bytes)} in {bundle.files_count} files"),
    ]
    rows += [
        ("attached", f"{attachment_name(predicate or kind)}  {digest}")
        for kind, predicate, digest in found.referrers
    ]
    output.table(("bundle", ""), rows)
    output.data("")
    layers = [
        (
            layer.path,
            layer.media_type.removeprefix("application/vnd.cncf.model."),
            units.size(layer.size_bytes),
            layer.digest,
        )
        for layer in found.layers
    ]
    output.table(("layer", "kind", "size", "digest"), layers)
    output.data("")
    output.table(("asset", "path"), [(asset.pointer, asset.path) for asset in bundle.assets])
    if bundle.images:
        output.data("")
        embedded = {(entry.framework, entry.accelerator) for entry in found.embedded}
        pins = [
            (
                str(pin.place),
                pin.image,
                "embedded" if (pin.framework, pin.accelerator) in embedded and pin.manifest else "pinned",
                pin.config or pin.digests[0],
            )
            for pin in bundle.images
        ]
        output.table(("platform", "image", "state", "digest"), pins)
