"""The columns of `layers.npz` and `kernels.npz`, as a worker sends them and as a run keeps them.

A file holds int64 columns of equal length and a table `strings`; text columns are rows of that table. Times are ns on
CLOCK_MONOTONIC; a number that is not known is -1, a text that is not known is empty.
"""

from __future__ import annotations

STRINGS = "strings"
UNKNOWN = -1

# `run` numbers the profiled queries of a pass, `index` the layers of a run in the order in which they began.
# `original_name` is the name that the model's author knows the layer by, empty where it could not be found.
# Shapes are texts: `1x3x224x224`, several tensors with a comma and a space between them.
LAYER_NUMBERS = (
    "run",
    "index",
    "start_ns",
    "duration_ns",
    "alloc_bytes",
    "param_bytes",
    "flops",
)
LAYER_TEXTS = ("name", "original_name", "type", "provider", "shape_in", "shape_out", "flops_source")
FLOPS_SOURCES = ("", "computed", "measured")

# `layer_index` is the `index` of the layer of the same run that a kernel belongs to, -1 for none. `stream` is the
# stream of a device, or the thread of an operator on the CPU.
KERNEL_NUMBERS = ("run", "layer_index", "stream", "start_ns", "duration_ns", "correlation", "bytes")
KERNEL_TEXTS = ("name", "kind", "device", "grid", "block")
KERNEL_KINDS = ("kernel", "copy", "operator")

# The clock of a device is related to ours by a fit, which may be so far off; and so long after the last query may a
# device still do what it was asked for.
DEVICE_CLOCK_NS, DEVICE_MARGIN_NS = 1_000_000, 10_000_000_000

# Which pass of the run a row is from; the host adds it.
PASS = "pass"  # noqa: S105 - a pass of a run
MAX_ROWS = 2_000_000
