"""`mlbundle verify`: check every byte of a bundle, and who signed it."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlbundle.cli import output
from mlbundle.cli.inspect_ import attachment_name, warn_of_pickles
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference
from mlbundle.cli.progress import byte_progress
from mlbundle.wording import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlbundle.signing.trust import Trust
    from mlbundle.store.entries import LibraryEntry


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
    """Check every byte of a bundle against its digests, and its signatures against the trust policy if there is one.

    Exit code 0 when all is as it should be, 5 when it is not, 1 when a signature is wanted and there is none that
    is trusted.
    """
    from mlbundle.bundle.verify import verify_reader
    from mlbundle.config import load_settings
    from mlbundle.runs.attesting import check_trust, load_rules
    from mlbundle.runs.opening import open_found
    from mlbundle.runs.references import resolve

    settings = load_settings()
    rules = load_rules(policy=policy, keys=keys, settings=settings, needed=require_signature)
    trust: Trust | None = None
    found = resolve(reference, settings)
    reach = network(plain_http=plain_http, ca_file=ca_file)
    with (
        _naming_origin(found.entry),
        open_found(found, settings, reach, packed=True, report=output.warn) as reader,
        byte_progress("verifying") as progress,
    ):
        verified = verify_reader(reader, progress)
        if rules is not None:
            trust = check_trust(reader, rules)
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
    rows += [("attached", _attached(attachment_name(kind), trust)) for kind in verified.referrers]
    if trust is not None:
        rows += [("signed by", signer.identity or signer.key_id) for signer in trust.signers]
    output.table(("bundle", ""), rows)
    if trust is not None:
        for warning in trust.warnings:
            output.warn(warning)
    warn_of_pickles(verified.pickles)


def _attached(name: str, trust: Trust | None) -> str:
    return f"{name} (not checked: --key or --trust)" if trust is None and "signature" in name else name


@contextmanager
def _naming_origin(entry: LibraryEntry | None) -> Iterator[None]:
    """Say of a damaged bundle of the library how it is mended: by getting it again where it came from."""
    from mlbundle.errors import IntegrityError, SignatureInvalid

    try:
        yield
    except IntegrityError as error:
        if entry is not None and not isinstance(error, SignatureInvalid):
            error.hint = entry.mending_hint
        raise


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
