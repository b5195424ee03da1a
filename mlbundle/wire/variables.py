"""Which environment variables explain a number and may be told to others.

The worker tells only these, and the host believes only these.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

_FAMILIES = (
    "BLIS_",
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "ORT_",
    "PYTORCH_",
    "TF_",
    "TORCH_",
)
_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED", "XLA_FLAGS")
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_DEVICE = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]{7,}")
MOST_VARIABLES = 256
LONGEST_VALUE = 1000


def telling(variables: Mapping[str, Any], home: str) -> dict[str, str]:
    """Return the variables that may go into a record, in order of name: no secrets, `home` as `~`, no device ids."""
    names = sorted(name for name in variables if _may_be_told(name))[:MOST_VARIABLES]
    return {name: _shown(str(variables[name]), home) for name in names}


def _may_be_told(name: str) -> bool:
    known = name in _NAMES or name.startswith(_FAMILIES)
    return known and len(name) <= 128 and _SECRET.search(name) is None


def _shown(value: str, home: str) -> str:
    if len(home) > 1:
        value = re.sub(r"{}(?=/|:|$)".format(re.escape(home)), "~", value)
    return _DEVICE.sub(r"\1-...", value)[:LONGEST_VALUE]
