"""Python files of a bundle as modules: its own predictor, the code of a model whose weights come apart.

They run in the worker's process, which is why the host sends them only to where something isolates it, or where the
user said `--trust`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from typing import Any

from mlbundle.worker.errors import bundle_error


def load_module(path: str) -> Any:
    """Return the module of a file; modules beside it can be imported by it. Raises WorkerError: the bundle's fault."""
    name = "mlbundle_bundle_" + os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.endswith(".py") or spec is None or spec.loader is None:
        raise bundle_error("code-unloadable", "{} is no Python file".format(os.path.basename(path)))
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs: dataclasses and pickles look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise bundle_error(
            "code-unloadable",
            "{}{} can't be loaded: {}: {}".format(
                os.path.basename(path), _line(error, path), type(error).__name__, error
            ),
            "worker.log has the traceback",
        ) from error
    return module


def load_class(path: str, name: str) -> Any:
    """Return what a file defines under a name. Raises WorkerError when it does not."""
    module = load_module(path)
    found = getattr(module, name, None)
    if not callable(found):
        raise bundle_error(
            "code-unloadable",
            "{} defines no {}".format(os.path.basename(path), name),
            "it must define a class or function called {}".format(name),
        )
    return found


def find_in_file(path: str, name: str) -> Any | None:
    """Return the class or function of this name that a file defines, None where it defines none."""
    found = getattr(load_module(path), name, None)
    return found if callable(found) else None


def _line(error: BaseException, path: str) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return ", line {},".format(frames[-1].lineno) if frames else ""
