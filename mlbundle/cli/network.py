"""Options of commands that may talk to registries and web servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.runs.network import Network


def network_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--plain-http` and `--ca-file`; the command receives `plain_http` and `ca_file`."""
    function = click.option(
        "--ca-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        envvar="MLBUNDLE_CA_FILE",
        help="Certificates to trust beside the system's (PEM).",
    )(function)
    return click.option(
        "--plain-http", is_flag=True, help="Talk to registries and web servers without TLS; for tests only."
    )(function)


def network(*, plain_http: bool, ca_file: Path | None) -> Network:
    """Return the values of the options."""
    from mlbundle.runs.network import Network

    return Network(plain_http=plain_http, ca_file=ca_file)
