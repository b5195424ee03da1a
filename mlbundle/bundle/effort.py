"""A limit on work that a stranger's file can ask for."""

from __future__ import annotations


class Effort:
    """How many opcodes may still be looked at in a whole bundle; a stranger's files may be made to be slow."""

    def __init__(self, opcodes: int = 1_000_000) -> None:
        self._left = opcodes

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self._left <= 0

    def count(self) -> None:
        """Count one opcode."""
        self._left -= 1
