"""A Python that exists already: whether the worker can run in it, and what it is, for the record."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.errors import EnvironmentLacks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

OLDEST = (3, 9)
"""The oldest Python that the worker runs in."""

Kind = Literal["virtual environment", "conda environment", "installation"]
_TIMEOUT_S = 60.0
_LONGEST_LINE = 200
_MARK = "mlbundle-python:"
_MODULES = {"onnxruntime": "onnxruntime", "torch": "torch", "tensorflow": "tensorflow"}
"""Framework -> the module that its predictor imports; of others only the bundle's own predictor knows."""

# Also read by Python 2, so that it can say that it is too old.
_PROBE = """
import json, os, sys
missing = []
try:
    from importlib.util import find_spec
    missing = [name for name in sys.argv[1:] if find_spec(name) is None]
except ImportError:
    pass
base = getattr(sys, "base_prefix", sys.prefix)
if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
    kind = "conda environment"
else:
    kind = "installation" if base == sys.prefix else "virtual environment"
implementation = getattr(getattr(sys, "implementation", None), "name", "unknown")
print("mlbundle-python:" + json.dumps({
    "version": list(sys.version_info[:3]), "implementation": implementation, "prefix": sys.prefix,
    "base_prefix": base, "kind": kind, "missing": missing,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that the worker can run in; `kind` says how it was made, `pythonpath` what the user adds to it."""

    python: Path
    version: str
    implementation: str
    kind: Kind
    prefix: str
    base_prefix: str
    pythonpath: str | None

    def to_document(self) -> dict[str, Any]:
        """Return what the run record says of it."""
        return {
            "python": str(self.python),
            "version": self.version,
            "implementation": self.implementation,
            "kind": self.kind,
            "prefix": self.prefix,
            **({"base_prefix": self.base_prefix} if self.base_prefix != self.prefix else {}),
            **({"pythonpath": self.pythonpath} if self.pythonpath else {}),
        }


def existing_python(python: Path, framework: str, variables: Mapping[str, str]) -> Interpreter:
    """Return what the Python at a path is, after a look whether it can run the worker with a framework.

    `variables` are the environment that the worker would have. Raises EnvironmentLacks: no Python, too old, without
    NumPy or the framework.
    """
    module = _MODULES.get(framework.lower())
    answer = _ask(python, ["numpy", *([module] if module is not None else [])], variables)
    version = ".".join(str(part) for part in answer["version"])
    if tuple(answer["version"][:2]) < OLDEST:
        raise EnvironmentLacks(
            f"Python {version} is too old for the worker",
            where=str(python),
            hint=f"--python takes Python {'.'.join(map(str, OLDEST))} or newer",
        )
    if answer["missing"]:
        raise EnvironmentLacks(
            f"Python {version} has no {' and no '.join(answer['missing'])}",
            where=str(python),
            hint=f"install {' and '.join(answer['missing'])} there (packages in ~/.local are not seen), or leave out "
            "--python",
        )
    return Interpreter(
        python=python,
        version=version,
        implementation=str(answer["implementation"]),
        kind=answer["kind"],
        prefix=str(answer["prefix"]),
        base_prefix=str(answer["base_prefix"]),
        pythonpath=variables.get("PYTHONPATH"),
    )


def _ask(python: Path, modules: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(python), "-s", "-c", _PROBE, *modules],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=os.sep,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise _no_python(python, f"it did not answer for {_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise _no_python(python, error.strerror or str(error)) from error
    said = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.startswith(_MARK)]
    if not said:
        raise _no_python(
            python,
            f"it ended with status {done.returncode} and no answer",
            _last_words(done.stderr.decode("utf-8", "replace")),
        )
    document: dict[str, Any] = json.loads(said[-1].removeprefix(_MARK))
    return document


def _last_words(said: str) -> list[str]:
    """Return the last line that a program wrote, printable and short: it may quote the whole question."""
    lines = ["".join(c if c.isprintable() else " " for c in line).strip() for line in said.splitlines()]
    last = next((" ".join(line.split()) for line in reversed(lines) if line), None)
    return [] if last is None else [last if len(last) <= _LONGEST_LINE else last[: _LONGEST_LINE - 1] + "…"]


def _no_python(python: Path, why: str, context: Sequence[str] = ()) -> EnvironmentLacks:
    return EnvironmentLacks(
        f"this is no Python that can be used: {why}",
        where=str(python),
        context=context,
        hint="--python takes the path of a Python interpreter, such as an environment's bin/python",
    )
