"""Tells a pickle by its opcodes, which are walked over and never executed."""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlbundle.bundle.effort import Effort

    ReadAt = Callable[[int, int], bytes]

_LINE_BYTES = 16 << 10
_MAX_OPCODES = 10_000
_MAX_PROTOCOL = 9
"""No Python reads a protocol above 5 today; a byte that says more is no mark but chance."""

_MAX_LINES_BYTES = 16 << 20
_CALLS = frozenset({"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"})
_IMPORTS = frozenset({"GLOBAL", "INST"})
_OPCODES = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


class _Truncated(Exception):
    """The bytes end, or the lines are longer than we look."""


class Opcodes:
    """Walks over bytes as if they were a pickle: opcode by opcode, arguments skipped, the stack kept in mind.

    A protocol mark and one more known opcode decide at once. Protocols 0 and 1 have no mark and look like
    text, so there the stack has to work out to one object at the end, or something has to be called before the
    bytes end (what is called is called even if the rest is missing). When the effort is spent they count as one:
    nobody can say that they are none.
    """

    def __init__(self, read_at: ReadAt, window: bytes, effort: Effort) -> None:
        self._effort = effort
        self._read_at = read_at
        self._window = window
        self._position = 0
        self._stack: list[str] = []
        self._calls = False
        self._budget = _MAX_LINES_BYTES

    def are_a_pickle(self) -> bool:
        """Return whether the bytes are a pickle, or the beginning of one."""
        marked = False
        try:
            for number in range(_MAX_OPCODES):
                if self._effort.spent:
                    return True
                self._effort.count()
                opcode = _OPCODES.get(self._take(1)[0])
                if opcode is None:
                    return False
                if marked:
                    return True
                if opcode.name == "STOP":
                    return number > 1 and self._stack == ["object"]
                marked = opcode.name == "PROTO" and number == 0
                if marked and self._peek() > _MAX_PROTOCOL:
                    return False
                if not (self._skip_argument(opcode) and self._apply(opcode)):
                    return False
        except _Truncated:
            pass
        return self._calls

    def _take(self, count: int) -> bytes:
        start = self._position
        inside = start + count <= len(self._window)
        data = self._window[start : start + count] if inside else self._read_at(start, count)
        if len(data) < count:
            raise _Truncated
        self._position += count
        return data

    def _peek(self) -> int:
        byte = self._take(1)[0]
        self._position -= 1
        return byte

    def _line(self) -> bytes:
        line = bytearray()
        while self._budget > 0:
            piece = self._read_at(self._position, _LINE_BYTES)
            end = piece.find(b"\n")
            taken = len(piece) if end < 0 else end + 1
            self._position += taken
            self._budget -= taken
            line += piece[:taken]
            if end >= 0:
                return bytes(line[:-1])
            if not piece:
                break
        raise _Truncated

    def _skip_argument(self, opcode: pickletools.OpcodeInfo) -> bool:
        """Step over the argument; False when it can't be one: an import of something that is no name."""
        if opcode.arg is None:
            return True
        if opcode.arg.n == pickletools.UP_TO_NEWLINE:
            lines = [self._line() for _ in range(2 if opcode.name in _IMPORTS else 1)]
            return opcode.name not in _IMPORTS or all(map(_is_dotted, lines))
        length = opcode.arg.n
        if length in _LENGTHS:
            length = int.from_bytes(self._take(_LENGTHS[length]), "little")
        self._position += length
        return True

    def _apply(self, opcode: pickletools.OpcodeInfo) -> bool:
        """Do to the stack what the opcode does; False when the stack does not hold what it takes."""
        before, stack = opcode.stack_before, self._stack
        taken = len(before)
        if pickletools.markobject in before:
            if "mark" not in stack:
                return False
            while stack.pop() != "mark":
                pass
            taken = before.index(pickletools.markobject)
        if taken > len(stack):
            return False
        del stack[len(stack) - taken :]
        stack += ["mark" if thing is pickletools.markobject else "object" for thing in opcode.stack_after]
        self._calls = self._calls or opcode.name in _CALLS
        return True


def _is_dotted(line: bytes) -> bool:
    try:
        return all(part.isidentifier() for part in line.decode("utf-8").split("."))
    except UnicodeDecodeError:
        return False
