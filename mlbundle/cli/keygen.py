"""`mlbundle keygen`: make a key for signing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click

from mlbundle.cli import output


@click.command("keygen")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--passphrase-file", type=click.File("r"), help="Protect it with the first line of this file.")
@click.option("--no-passphrase", is_flag=True, help="Do not ask for a passphrase.")
@output.format_options("table", "json")
def command(*, path: Path, passphrase_file: IO[str] | None, no_passphrase: bool, output_format: str) -> None:
    """Make an Ed25519 key: the private half at PATH, the public half beside it as PATH.pub.

    On a terminal a passphrase is asked for; elsewhere there is none unless --passphrase-file gives it.
    """
    from mlbundle.signing import keys

    passphrase: str | None = None
    if passphrase_file is not None:
        passphrase = passphrase_file.readline().rstrip("\n")
    elif not no_passphrase and sys.stdin.isatty():
        prompt = "passphrase (empty for none)"
        passphrase = click.prompt(
            prompt, hide_input=True, confirmation_prompt=True, default="", show_default=False, err=True
        )
    public = keys.generate(path, passphrase or None)
    document = {
        "schema": "mlbundle/key/v1",
        "private": str(path),
        "public": str(keys.public_path(path)),
        "key": public.id,
    }
    if output_format == "json":
        output.document(document)
        return
    output.table(("key", ""), [(k, v) for k, v in document.items() if k != "schema"])
