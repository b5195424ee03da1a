"""The only place that writes: stdout is data, stderr is narration.

A terminal gets tables that fit it; piped output is plain text of one line a row that scripts can cut.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mlbundle.errors import MlbundleError

FORMATS = ("table", "json", "jsonl", "csv", "markdown")


@dataclass
class _State:
    verbosity: int = 0
    color: str = "auto"


_state = _State()


def configure(*, verbosity: int | None = None, color: str | None = None) -> None:
    """Set how much is said (-1 quiet, 0 normal, 1, 2) and whether in colour; None leaves it as it is."""
    if verbosity is not None:
        _state.verbosity = verbosity
    if color is not None:
        _state.color = color


def verbosity() -> int:
    """Return how much is said."""
    return _state.verbosity


def use_color(stream: Any) -> bool:
    """Return whether to colour what goes to `stream`: --color, then NO_COLOR, FORCE_COLOR, then a terminal."""
    if _state.color != "auto":
        return _state.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return bool(stream.isatty())


def format_options(*formats: str) -> Callable[[Any], Any]:
    """Add `--format` (limited to `formats`, default the first) and `--json` to a command.

    The command receives one argument, `output_format`.
    """
    choices = formats or FORMATS

    def decorate(function: Any) -> Any:
        def join(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
            if value:
                ctx.params["output_format"] = "json"

        def keep(ctx: click.Context, _param: click.Parameter, value: str) -> str:
            chosen: str = ctx.params.get("output_format", value)
            return chosen

        function = click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=join,
            help="Short for --format json.",
        )(function)
        return click.option(
            "--format",
            "output_format",
            type=click.Choice(choices),
            default=choices[0],
            callback=keep,
            show_default=True,
            help="How the result is printed on stdout.",
        )(function)

    return decorate


def printable(text: str) -> str:
    """Return a text with control characters and lone surrogates escaped; line ends stay.

    Names, descriptions and messages of strangers reach the terminal only like this.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text
    )


def data(text: str) -> None:
    """Write a line of result to stdout."""
    click.echo(printable(text))


def raw(content: bytes) -> None:
    """Write bytes to stdout as they are, unless a terminal shows them: then what can't be printed is escaped."""
    if sys.stdout is not None and sys.stdout.isatty():
        click.echo(printable(content.decode("utf-8", "replace")))
    else:
        click.echo(content, nl=False)


def document(value: Mapping[str, Any]) -> None:
    """Write one JSON document to stdout, in ASCII: it is the same in every locale."""
    click.echo(json.dumps(value, indent=2))


def json_line(value: Mapping[str, Any]) -> None:
    """Write one JSON object on a line of its own to stdout."""
    click.echo(json.dumps(value, separators=(",", ":")))


def narrate(text: str, *, level: int = 0) -> None:
    """Say something on stderr, when the user wants to hear that much."""
    if _state.verbosity >= level:
        click.echo(printable(text), err=True)


def warn(text: str, *, hint: str | None = None) -> None:
    """Say on stderr what the user should know and what does not stop the command."""
    if _state.verbosity >= 0:
        _styled("warning: ", text, fg="yellow")
        if hint:
            click.echo(f"   hint: {printable(hint)}", err=True)


def error(failure: MlbundleError, *, as_json: bool = False) -> None:
    """Write an error: text on stderr, or one JSON document on stdout."""
    if as_json:
        document(failure.to_document())
        return
    _styled("error", f"[{failure.reference}]: {failure.message}", fg="red", bold=True)
    if failure.where:
        click.echo(f"  where: {printable(failure.where)}", err=True)
    for line in failure.context:
        click.echo(f"       | {printable(line)}", err=True)
    if failure.hint:
        _styled("   hint: ", failure.hint, fg="cyan")


def _styled(head: str, text: str, **style: Any) -> None:
    click.echo(click.style(head, **style) + printable(text), err=True, color=use_color(sys.stderr))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    output_format: str = "table",
    spare: Sequence[str] = (),
) -> None:
    """Write rows as a table, CSV, Markdown or JSON lines.

    On a terminal a table keeps to its width; `spare` are columns that can be left out for it, the first one first.
    """
    cells = [["" if cell is None else cell for cell in row] for row in rows]
    if output_format == "jsonl":
        for row in cells:
            json_line(dict(zip(columns, row, strict=True)))
    elif output_format == "csv":
        _csv(columns, cells)
    else:
        texts = [[printable(str(cell)).replace("\n", "\\n") for cell in row] for row in cells]
        if output_format == "markdown":
            click.echo("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
            for row in texts:
                click.echo("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        else:
            _text_table(columns, texts, spare)


def records(
    documents: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    cells: Callable[[Mapping[str, Any]], Sequence[Any]],
    *,
    output_format: str = "table",
    spare: Sequence[str] = (),
) -> None:
    """Write JSON-ready documents with the same members.

    People (table, markdown) get `columns`, with the `cells` of each document (`spare` as for `table`); programs (jsonl,
    csv) its members as they are, named as in JSON.
    """
    if output_format == "jsonl":
        for document_ in documents:
            json_line(document_)
    elif output_format == "csv":
        names = list(documents[0]) if documents else list(columns)
        _csv(names, [[_plain(document_[name]) for name in names] for document_ in documents])
    else:
        table(
            columns, [cells(document_) for document_ in documents], output_format=output_format, spare=spare
        )


def notes(lines: Sequence[str], *, output_format: str) -> None:
    """Write what belongs below a table for people; programs that read CSV or JSON lines get none."""
    from mlbundle.cli.tables import wrapped

    if lines and output_format in {"table", "markdown"}:
        data("")
        width = terminal_width() if output_format == "table" else None
        for number, line in enumerate(lines):
            if width is not None:
                for part in wrapped(line, width):
                    data(part)
                continue
            # Markdown takes lines that follow each other for one.
            data(f"{line}  " if output_format == "markdown" and number < len(lines) - 1 else line)


def terminal_width() -> int | None:
    """Return the width of the terminal that stdout is, None where it is none: what is piped is not broken."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if terminal else None


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    click.echo(buffer.getvalue(), nl=False)


def _text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> None:
    from mlbundle.cli.tables import lay_out

    width = terminal_width()
    layout = lay_out(columns, rows, width, spare=spare)
    for number, line in enumerate(layout.lines):
        bold = width is not None and number < layout.headers and use_color(sys.stdout)
        click.echo(click.style(line, bold=True) if bold else line)
