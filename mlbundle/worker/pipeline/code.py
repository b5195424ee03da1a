"""Custom `preprocess` and `postprocess` code of a manifest: `def fun(env, data)`, as in the paper.

It runs in the worker's process, which is why the host sends code only to where something isolates it, or where
the user said `--trust`.
"""

from __future__ import annotations

import inspect
import traceback
from typing import Any, Callable

from mlbundle.worker.errors import bundle_error

_MOST_SHOWN = 120


class CustomCode:
    """One side's function, called with the environment of a sample and its data."""

    def __init__(self, source: str, side: str) -> None:
        self.name = side
        self._lines = source.splitlines()
        self._function = _compile(source, side)

    def __call__(self, env: dict[str, Any], data: Any) -> Any:
        """Call the function; whatever it raises is the bundle's fault and says where."""
        try:
            return self._function(env, data)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            frames = [
                f for f in traceback.extract_tb(error.__traceback__) if f.filename == _filename(self.name)
            ]
            line = self._place(frames[-1].lineno) if frames else ""
            raise bundle_error(
                "custom-code-failed",
                "{} raised {}{}: {}".format(self.name, type(error).__name__, line, error),
                "worker.log has the traceback",
            ) from error

    def _place(self, line: int | None) -> str:
        """Say where in the manifest it was, with what stands there."""
        number = line or 0
        text = self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""
        return " in line {} of {} in model.yml ({})".format(number, self.name, text[:_MOST_SHOWN])


def _filename(side: str) -> str:
    return "<{} of the manifest>".format(side)


def _compile(source: str, side: str) -> Callable[[dict[str, Any], Any], Any]:
    namespace: dict[str, Any] = {"__name__": "mlbundle_{}".format(side)}
    try:
        exec(compile(source, _filename(side), "exec"), namespace)  # noqa: S102 - the point of custom code
    except (Exception, SystemExit) as error:
        raise bundle_error(
            "custom-code-unloadable", "the {} code can't be loaded: {}".format(side, error)
        ) from error
    function = namespace.get(side)
    if function is None:
        own = [
            v for v in namespace.values() if inspect.isfunction(v) and v.__module__ == namespace["__name__"]
        ]
        function = own[0] if len(own) == 1 else None
    if not callable(function):
        raise bundle_error(
            "custom-code-unloadable", "the {0} code defines no function {0}(env, data)".format(side)
        )
    result: Callable[[dict[str, Any], Any], Any] = function
    return result
