"""`mlbundle trace query`: SQL over the trace of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.cli.params import SECONDS, complete_run

if TYPE_CHECKING:
    from typing import BinaryIO

SCHEMA = "mlbundle/trace-query/v1"
_MAX_SQL_BYTES = 1 << 20
_DEFAULT_LIMIT_S = 120.0


@click.command("query")
@click.argument("words", nargs=-1, metavar="[RUN] [SQL]", shell_complete=complete_run)
@click.option(
    "--file",
    "sql_file",
    type=click.File("rb"),
    help="Read the SQL from a file; - is stdin.",
)
@click.option(
    "--timeout",
    "limit_s",
    type=SECONDS,
    default=_DEFAULT_LIMIT_S,
    metavar="DURATION",
    help="How long reading the trace, and then the query, may take  [2m].",
)
@click.option("--imported", is_flag=True, help="The trace that `mlbundle trace import` has made.")
@output.format_options()
def query(
    *,
    words: tuple[str, ...],
    sql_file: BinaryIO | None,
    limit_s: float,
    imported: bool,
    output_format: str,
) -> None:
    """Ask the trace of a run by SQL.

    RUN is the id of a run, its beginning, or latest, which is the default; the path of a trace does as well. Of several
    statements, separated by semicolons, the rows of the last one are shown. The tables are those of Perfetto's trace
    processor: slice, track, args, counter, flow and more; its standard library can be included.

    Needs a trace processor: the program named by MLBUNDLE_TRACE_PROCESSOR, else a trace_processor_shell on the PATH,
    else Node.js and the extra `mlbundle[trace]`.

    \b
    mlbundle trace query 'select name, dur from slice order by dur desc limit 10'
    """
    from mlbundle.config import load_settings
    from mlbundle.runs.traces import query_trace
    from mlbundle.trace.processor import plain

    run, sql = _run_and_sql(words, given=sql_file is not None)
    answer = query_trace(load_settings(), run, _sql(sql, sql_file), imported=imported, limit_s=limit_s)
    if answer.losses:
        lost = ", ".join(f"{name} {count}" for name, count in sorted(answer.losses.items()))
        output.warn(f"Perfetto could not read all of the trace: {lost}")
    columns = answer.result.columns
    rows = [[plain(cell) for cell in row] for row in answer.result.rows]
    if output_format == "json":
        documents = [dict(zip(columns, row, strict=True)) for row in rows]
        document = {"processor": answer.processor, "columns": list(columns), "rows": documents}
        output.document({"schema": SCHEMA, **document})
    elif columns:
        output.table(columns, rows, output_format=output_format)


def _run_and_sql(words: tuple[str, ...], *, given: bool) -> tuple[str, str | None]:
    """Return the run and the SQL of the arguments, either of which may be left out: a statement has several words.

    `given`: there is SQL already. Raises UsageError for more than two.
    """
    from mlbundle.errors import UsageError

    if len(words) > 2:
        raise UsageError(
            "there are more arguments than a RUN and one SQL", hint="put the SQL in quotation marks"
        )
    if len(words) == 1 and not given and len(words[0].split()) > 1:
        return "latest", words[0]
    return (words[0] if words else "latest"), (words[1] if len(words) > 1 else None)


def _sql(sql: str | None, sql_file: BinaryIO | None) -> str:
    """Return the SQL that is given once, as an argument or in a file."""
    from mlbundle.errors import UsageError

    if (sql is None) == (sql_file is None):
        raise UsageError(
            "give the SQL either as an argument or with --file", hint="see `mlbundle trace query --help`"
        )
    if sql_file is None:
        return sql or ""
    content = sql_file.read(_MAX_SQL_BYTES + 1)
    if len(content) > _MAX_SQL_BYTES:
        raise UsageError(f"the file holds more than {_MAX_SQL_BYTES} bytes of SQL", where=sql_file.name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the file is no UTF-8 text: {error.reason}", where=sql_file.name) from error
