"""Entry point: a lazy table of commands, one place where errors become text and exit codes."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mlbundle import __version__
from mlbundle.errors import EXIT_ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

# name -> (module with an attribute `command`, or module:attribute; one line of help). Nothing is imported before its
# command runs.
COMMANDS: dict[str, tuple[str, str]] = {
    "validate": ("mlbundle.cli.validate", "Check model and framework manifests; show every problem at once."),
    "list": ("mlbundle.cli.list_", "List the bundles that can be run by name."),
    "generate": ("mlbundle.cli.generate", "Make a model that is too big to ship, from its recipe."),
    "pack": ("mlbundle.cli.pack", "Make one bundle file of a manifest and its assets."),
    "inspect": ("mlbundle.cli.inspect_", "Show what a bundle holds, without trusting or unpacking it."),
    "verify": ("mlbundle.cli.verify", "Check every byte of a bundle, and who signed it."),
    "unpack": ("mlbundle.cli.unpack", "Write the verified files of a bundle into a new folder."),
    "diff": ("mlbundle.cli.diff", "Say what differs between two bundles."),
    "sign": ("mlbundle.cli.sign", "Sign a bundle."),
    "keygen": ("mlbundle.cli.keygen", "Make a key for signing."),
    "add": ("mlbundle.cli.add", "Take a bundle into the library."),
    "rm": ("mlbundle.cli.rm", "Take bundles out of the library."),
    "gc": ("mlbundle.cli.gc", "Give back the space of what nothing refers to."),
    "du": ("mlbundle.cli.du", "Say what takes how much space."),
    "repair": ("mlbundle.cli.repair", "Read every blob again; put aside what is damaged."),
    "push": ("mlbundle.cli.push", "Send a bundle to a registry."),
    "pull": ("mlbundle.cli.pull", "Bring a bundle from a registry into the library."),
    "login": ("mlbundle.cli.login", "Keep credentials for a registry."),
    "logout": ("mlbundle.cli.login:logout_command", "Forget the credentials for a registry."),
    "images": ("mlbundle.cli.images", "Build, pull, push, pin, export, load and remove framework images."),
    "run": ("mlbundle.cli.run", "Run a bundle under a scenario; measure, check accuracy, trace."),
    "sweep": (
        "mlbundle.cli.sweep",
        "Run many cells of one bundle: frameworks, batch sizes, threads, scenarios.",
    ),
    "runs": (
        "mlbundle.cli.runs",
        "List, show, compare and remove runs; attach to those that go on, and stop them.",
    ),
    "compare": ("mlbundle.cli.compare", "Show runs side by side, and whether they say the same."),
    "submission": (
        "mlbundle.cli.submission",
        "Make and check a tree of results for MLPerf Inference, open division.",
    ),
    "trace": (
        "mlbundle.cli.trace",
        "Look into the trace of a run: a summary, Perfetto's UI, SQL, other formats.",
    ),
    "tui": ("mlbundle_tui.command", "Choose, run and inspect in the terminal."),
    "doctor": ("mlbundle.cli.doctor", "Say what this machine is, what works, and what to do about the rest."),
    "config": ("mlbundle.cli.config", "Show the settings and where each value comes from."),
    "completion": ("mlbundle.cli.completion", "Print the completion script of a shell."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or "command")
        _add_verbosity(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add what was probably meant to the error about an unknown command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if close:
                message = f"{error.format_message()} Did you mean {close[0]!r}?"
                raise click.UsageError(message, ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _add_verbosity(command: click.Command) -> None:
    """Let -v and -q stand behind a command as well as before it."""
    if isinstance(command, click.Group):
        for name in command.commands:
            _add_verbosity(command.commands[name])
        return
    if any(param.name == "verbose" for param in command.params):
        return

    def more(_ctx: click.Context, _param: click.Parameter, value: int) -> None:
        from mlbundle.cli import output

        if value:
            output.configure(verbosity=value)

    def less(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        from mlbundle.cli import output

        if value:
            output.configure(verbosity=-1)

    settings: dict[str, Any] = {"expose_value": False, "is_eager": True}
    command.params += [
        click.Option(["-v", "--verbose"], count=True, callback=more, help="Say more on stderr.", **settings),
        click.Option(
            ["-q", "--quiet"], is_flag=True, callback=less, help="Say only results and errors.", **settings
        ),
    ]


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.option(
    "-v", "--verbose", count=True, help="Say more on stderr; twice for tracebacks of internal errors."
)
@click.option("-q", "--quiet", is_flag=True, help="Say only results and errors.")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Colour the output (NO_COLOR and FORCE_COLOR are honoured).",
)
def cli(verbose: int, quiet: bool, color: str) -> None:
    """ML evaluations that somebody else can repeat.

    A bundle is one file: manifests and checksummed assets. mlbundle validates it, runs it in a pinned image,
    measures it, traces it.
    """
    from mlbundle.cli import output

    output.configure(verbosity=-1 if quiet else verbose, color=color)


class _Signals:
    """The first Ctrl-C or SIGTERM ends the command; while it cleans up, the next ones are passed over.

    The fourth ends it at once: a worker notices that its host is gone, and the next command closes the run.
    """

    _PATIENCE = 3

    def __init__(self) -> None:
        self.status = 0
        self._seen = 0

    def install(self) -> None:
        """Take both signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        from mlbundle.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

        self._seen += 1
        if self._seen == 1:
            self.status = EXIT_TERMINATED if number == signal.SIGTERM else EXIT_INTERRUPTED
            raise KeyboardInterrupt
        if self._seen > self._PATIENCE:
            os._exit(self.status)


_signals = _Signals()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; never lets a traceback through unless `-vv` asks for it."""
    _signals.install()
    status = _flushed(_run(list(sys.argv[1:] if arguments is None else arguments)))
    # The interpreter looks for cycles among all that it leaves; there is nothing to gain from it.
    gc.freeze()
    sys.exit(status)


def _flushed(status: int) -> int:
    """Write out what stdout still holds; when it can't be, say so by the status and drop it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Or the interpreter would stumble over it once more at its end, with a status of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return status or EXIT_ENVIRONMENT
    return status


def _run(arguments: list[str]) -> int:
    from mlbundle.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_USAGE, MlbundleError

    try:
        result: Any = cli.main(arguments, prog_name="mlbundle", standalone_mode=False)
        sys.stdout.flush()
    except MlbundleError as error:
        return _report(error, arguments)
    except (click.exceptions.Abort, KeyboardInterrupt):
        from mlbundle.errors import Interrupted

        failure = Interrupted(
            "stopped by a signal" if _signals.status == EXIT_TERMINATED else "stopped by the user"
        )
        failure.exit_code = _signals.status or EXIT_INTERRUPTED
        return _report(failure, arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        return _help(error, arguments)
    except click.ClickException as error:
        from mlbundle.errors import UsageError

        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else None
        _report(
            UsageError(error.format_message(), where=where, hint=f"see `{where or 'mlbundle'} --help`"),
            arguments,
        )
        return EXIT_USAGE
    except SystemExit as ended:
        # click leaves like this, and wraps stdout, when the reader of our output went away.
        # By its name, as the class itself is about to go: newer versions warn of being asked for it.
        return 0 if type(sys.stdout).__name__ == "PacifyFlushWrapper" else _status(ended)
    except BrokenPipeError:
        # The reader of our output went away (`mlbundle … | head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:  # noqa: BLE001 - the last line of defence against a traceback
        return _internal(error, arguments)
    return result if isinstance(result, int) else 0


def _help(error: click.exceptions.NoArgsIsHelpError, arguments: list[str]) -> int:
    """Answer a command without what it needs with its help, on stderr: it has not done anything."""
    from mlbundle.cli import output
    from mlbundle.errors import EXIT_USAGE, UsageError

    path = error.ctx.command_path
    if _wants_json(arguments):
        return _report(UsageError("a command is missing", where=path, hint=f"see `{path} --help`"), arguments)
    output.narrate(error.format_message(), level=-1)
    output.narrate(f"\nhint: name a command: `{path} COMMAND`; `{path} COMMAND --help` says more", level=-1)
    return EXIT_USAGE


def _status(ended: SystemExit) -> int:
    return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


def _report(error: Any, arguments: list[str]) -> int:
    from mlbundle.cli import output

    as_json = _wants_json(arguments)
    try:
        output.error(error, as_json=as_json)
        if as_json:
            sys.stdout.flush()
    except (OSError, AttributeError):
        # stdout is full, closed or gone: what went wrong can still be said on stderr.
        with contextlib.suppress(OSError, AttributeError):
            output.error(error)
    return int(error.exit_code)


def _internal(error: Exception, arguments: list[str]) -> int:
    import traceback

    from mlbundle.cli import output
    from mlbundle.errors import StorageFailed, internal_error

    if isinstance(error, OSError) and error.errno is not None:
        where = str(error.filename) if error.filename else None
        return _report(
            StorageFailed(error.strerror or str(error), where=where, hint="see `mlbundle doctor`"), arguments
        )
    context = traceback.format_exc().splitlines() if output.verbosity() >= 2 else ()
    return _report(internal_error(error, context), arguments)


def _wants_json(arguments: list[str]) -> bool:
    return (
        "--json" in arguments or "--format=json" in arguments or "json" in _values_of(arguments, "--format")
    )


def _values_of(arguments: list[str], option: str) -> list[str]:
    return [arguments[i + 1] for i, argument in enumerate(arguments[:-1]) if argument == option]


if __name__ == "__main__":
    main()
