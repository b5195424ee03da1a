"""`mlbundle login` and `mlbundle logout`: credentials for a registry, kept where docker keeps them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mlbundle.cli import output


@click.command("login")
@click.argument("host")
@click.option("-u", "--user", help="The user; asked for when it is not given.")
@click.option("--password-stdin", is_flag=True, help="Read the password or token from stdin.")
@click.option("--plain-http", is_flag=True, help="Speak http: anybody on the way can read the password.")
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path),
    envvar="MLBUNDLE_CA_FILE",
    help="Trust the CAs in this PEM file, too.",
)
def command(
    host: str, user: str | None, password_stdin: bool, plain_http: bool, ca_file: Path | None
) -> None:
    """Check credentials for a registry and keep them.

    They go where docker keeps them: into its credential helper, or its config.json. Other tools find them there, and
    those that other tools made are used here.
    """
    from mlbundle import __version__
    from mlbundle.registry.client import check_login
    from mlbundle.registry.credentials import Credentials, store
    from mlbundle.registry.reference import parse_host

    host = parse_host(host.removeprefix("https://").rstrip("/"))
    user, password = _ask(user, password_stdin)
    checked = check_login(
        host,
        Credentials(user, password),
        user_agent=f"mlbundle/{__version__}",
        plain_http=plain_http,
        ca_file=ca_file,
    )
    place = store(host, user, password)
    if not checked:
        output.warn(f"{host} asks for no credentials, so these could not be checked")
    if not place.startswith("docker-credential-"):
        output.warn(
            f"the password is in {place}, readable by you alone",
            hint="a credential helper keeps it better: see credsStore in docker's documentation",
        )
    output.narrate(f"logged in to {host} as {user}")


@click.command("logout")
@click.argument("host")
def logout_command(host: str) -> None:
    """Forget the credentials for a registry."""
    from mlbundle.registry.credentials import erase
    from mlbundle.registry.reference import parse_host

    host = parse_host(host.removeprefix("https://").rstrip("/"))
    if erase(host):
        output.narrate(f"forgot the credentials for {host}")
    else:
        output.narrate(f"there were no credentials for {host}")


def _ask(user: str | None, password_stdin: bool) -> tuple[str, str]:
    """Return user and password; asks only a person at a terminal. Raises UsageError when something is missing."""
    from mlbundle.errors import UsageError

    if password_stdin:
        if user is None:
            raise UsageError("--password-stdin needs --user")
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin is not None and sys.stdin.isatty():
        user = user or click.prompt("User", err=True)
        password = click.prompt("Password", hide_input=True, err=True)
    else:
        raise UsageError(
            "there is no terminal to ask for a password",
            hint="pass it by --password-stdin: `mlbundle login HOST -u USER --password-stdin < FILE`",
        )
    if not user or ":" in user or not password:
        raise UsageError("a user without a colon and a password are needed")
    return user, password
