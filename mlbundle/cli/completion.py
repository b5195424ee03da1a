"""`mlbundle completion`: the completion script of a shell, from click."""

from __future__ import annotations

import click

from mlbundle.cli import output

_HELP = """Print the completion script of SHELL.

    bash:  eval "$(mlbundle completion bash)"
    zsh:   eval "$(mlbundle completion zsh)"
    fish:  mlbundle completion fish | source
"""


@click.command("completion", help="\b\n" + _HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from mlbundle.cli.main import cli

    maker = get_completion_class(shell)
    assert maker is not None
    output.data(maker(cli, {}, "mlbundle", "_MLBUNDLE_COMPLETE").source())
