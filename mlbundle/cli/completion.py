"""`mlbundle completion`: the completion script of a shell, from click."""

from __future__ import annotations

import os

import click

from mlbundle.cli import output
from mlbundle.errors import UsageError

_SHELLS = ("bash", "zsh", "fish")
_HELP = """Print the completion script of SHELL, of $SHELL by default.

\b
    bash:  eval "$(mlbundle completion bash)"
    zsh:   eval "$(mlbundle completion zsh)"
    fish:  mlbundle completion fish | source
"""


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def command(shell: str | None) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from mlbundle.cli.main import cli

    if shell is None:
        shell = os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - a text, maybe of no path
        if shell not in _SHELLS:
            raise UsageError("for which shell?", hint=f"name one: `mlbundle completion {'|'.join(_SHELLS)}`")
    maker = get_completion_class(shell)
    assert maker is not None
    output.data(maker(cli, {}, "mlbundle", "_MLBUNDLE_COMPLETE").source())
