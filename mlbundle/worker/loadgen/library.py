"""The LoadGen module, where this environment has it."""

from __future__ import annotations

import importlib
import platform
from typing import Any

from mlbundle.worker.errors import WorkerError


def load_loadgen() -> Any:
    """Return the module `mlperf_loadgen`; raises WorkerError when it is not in this environment."""
    try:
        return importlib.import_module("mlperf_loadgen")
    except ImportError as error:
        raise WorkerError(
            "loadgen-missing",
            "mlcommons-loadgen is not in this environment (Python {}, {}): {}".format(
                platform.python_version(), platform.machine(), error
            ),
            fault="environment",
            hint="use an image or an environment that mlbundle made: those for amd64 have it. There is no wheel for "
            "Linux on arm64: `mlbundle images build FRAMEWORK --loadgen-source` compiles it into the image; for "
            "`--python`, `pip install mlcommons-loadgen` does, with a C++ compiler and Python's headers",
        ) from error
