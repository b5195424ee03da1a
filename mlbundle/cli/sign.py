"""`mlbundle sign`: attach a signature to a bundle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.network import network, network_options
from mlbundle.cli.params import complete_reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.signing.referrers import Referrer, Subject

SCHEMA = "mlbundle/signed/v1"


@click.command("sign")
@click.argument("reference", shell_complete=complete_reference)
@click.option("--key", type=click.Path(path_type=Path), help="Private key; `mlbundle keygen` makes one.")
@click.option(
    "--ssh-key", type=click.Path(path_type=Path), help="SSH key, or its public half if the agent has it."
)
@click.option(
    "--passphrase-file", type=click.File("r"), help="Read the passphrase of --key from a file, - for stdin."
)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path), help="Write the signed bundle there."
)
@click.option("-f", "--force", is_flag=True, help="Replace an existing file; for --output.")
@network_options
@output.format_options("table", "json")
def command(
    *,
    reference: str,
    key: Path | None,
    ssh_key: Path | None,
    passphrase_file: IO[str] | None,
    target: Path | None,
    force: bool,
    plain_http: bool,
    ca_file: Path | None,
    output_format: str,
) -> None:
    """Sign a bundle: a file, a bundle of the library, or one in a registry.

    The signature is over the digest of the model manifest, so it covers every byte, and travels with the bundle.
    The digest stays as it is.
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.attesting import sign
    from mlbundle.runs.references import resolve
    from mlbundle.signing import keys, sigstore, ssh

    if (key is None) == (ssh_key is None):
        raise click.UsageError("name one key: --key or --ssh-key")
    settings = load_settings()
    found = resolve(reference, settings)

    private = keys.load_private(key, passphrase_from(passphrase_file)) if key is not None else None

    def make(subject: Subject, name: str) -> Referrer:
        if private is not None:
            return sigstore.sign(subject, name, private)
        assert ssh_key is not None
        return ssh.sign(subject, name, ssh_key)

    reach = network(plain_http=plain_http, ca_file=ca_file)
    digest, where = sign(found, settings, reach, make, output=target, overwrite=force)
    document = {
        "schema": SCHEMA,
        "where": where,
        "manifest_digest": digest,
        "key": private.public.id if private else None,
    }
    if output_format == "json":
        output.document(document)
        return
    rows = [("where", where), ("manifest", digest)]
    output.table(("signed", ""), [*rows, *([("key", private.public.id)] if private else [])])


def passphrase_from(file: IO[str] | None) -> Callable[[], str]:
    """Return what gives the passphrase of a key when it is needed: the file's first line, or whoever is asked."""

    def give() -> str:
        if file is not None:
            return file.readline().rstrip("\n")
        if not sys.stdin.isatty():
            raise click.UsageError(
                "the key has a passphrase and there is no terminal to ask for it: --passphrase-file"
            )
        text: str = click.prompt("passphrase", hide_input=True, err=True)
        return text

    return give
