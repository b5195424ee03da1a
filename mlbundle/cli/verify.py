"""`mlbundle verify`: check every byte of a bundle, and who signed it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output, units
from mlbundle.cli.inspect_ import attachment_name, warn_of_pickles
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference
from mlbundle.cli.progress import byte_progress

if TYPE_CHECKING:
    from mlbundle.signing.trust import Trust


@click.command("verify")
@click.argument("reference", shell_complete=complete_reference)
@click.option(
    "--require-signature", is_flag=True, help="Say no unless somebody who is trusted has signed it."
)
@click.option(
    "--trust",
    "policy",
    type=click.Path(path_type=Path),
    help="Policy that says whose signature is wanted  [trust.yml among the settings].",
)
@click.option("--key", "keys", multiple=True, type=click.Path(path_type=Path), help="Public key to trust.")
@network_options
@output.format_options("table", "json")
def command(
    *,
    reference: str,
    require_signature: bool,
    policy: Path | None,
    keys: tuple[Path, ...],
    plain_http: bool,
    ca_file: Path | None,
    output_format: str,
) -> None:
    """Check every byte of a bundle against its digests.

    Exit code 0 when all is as it should be, 5 when it is not, 1 when a signature is wanted and there is none that
    is trusted.
    """
    from mlbundle.bundle.verify import verify_reader
    from mlbundle.config import load_settings
    from mlbundle.runs.attesting import check_trust
    from mlbundle.runs.opening import open_reference

    settings = load_settings()
    wanted = require_signature or policy is not None or bool(keys)
    trust: Trust | None = None
    with (
        open_reference(
            reference, settings, network(plain_http=plain_http, ca_file=ca_file), packed=True
        ) as reader,
        byte_progress("verifying") as progress,
    ):
        verified = verify_reader(reader, progress)
        if wanted:
            trust = check_trust(reader, policy=policy, keys=keys, settings=settings)
    if output_format == "json":
        output.document({**verified.to_document(), "trust": _trust_document(trust)})
        return
    rows = [
        ("verified", verified.name_of_source),
        ("manifest", verified.manifest_digest),
        ("set", verified.set_digest),
        ("size", units.size(verified.size_bytes)),
        ("files", str(len(verified.files))),
    ]
    rows += [("image", platform) for platform in verified.images]
    rows += [("attached", attachment_name(kind)) for kind in verified.referrers]
    if trust is not None:
        rows += [("signed by", signer.identity or signer.key_id) for signer in trust.signers]
    output.table(("bundle", ""), rows)
    if trust is not None:
        for warning in trust.warnings:
            output.warn(warning)
    warn_of_pickles(verified.pickles)


def _trust_document(trust: Trust | None) -> dict[str, Any] | None:
    if trust is None:
        return None

    def signers(found: Any) -> list[dict[str, Any]]:
        return [
            {
                "kind": signer.kind,
                "key": signer.key_id,
                "identity": signer.identity,
                "predicate_type": signer.predicate_type,
            }
            for signer in found
        ]

    return {
        "signers": signers(trust.signers),
        "attestations": signers(trust.attestations),
        "others": list(trust.others),
        "rule": trust.rule.name,
        "warnings": list(trust.warnings),
    }
