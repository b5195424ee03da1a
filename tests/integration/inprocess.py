"""The command line without a process of its own, for tests of many short commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Outcome

from mlbundle.cli.main import main


class InProcess:
    """Runs commands as the `cli` fixture does, ten times as fast; the working folder is the caller's."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path) -> Outcome:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = self._capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)
