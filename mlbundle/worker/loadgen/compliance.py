"""The compliance tests of MLPerf Inference as LoadGen takes them: a file of settings that override a test's own.

Form and values are those of MLCommons' `compliance/TEST01` and `compliance/TEST04`.
"""

from __future__ import annotations

TESTS = ("TEST01", "TEST04")
# The seed is fixed by MLCommons; the target is that of its image classifier.
_LOG_SEED = 720381539243781796
_LOG_TARGET = 128
_SAME_INDEX = 3


def audit_config(test: str, performance_samples: int) -> str:
    """Return the `audit.config` of a test for a set of so many samples.

    TEST01 logs some of the answers of a performance run (they must be those of the accuracy run), TEST04 asks for the
    same sample over and over (that must not be faster, or answers are kept).
    """
    lines = ["*.*.mode = 2"]
    if test == "TEST01":
        lines += [
            "*.*.accuracy_log_rng_seed = {}".format(_LOG_SEED),
            "*.*.accuracy_log_sampling_target = {}".format(_LOG_TARGET),
        ]
    else:
        lines += [
            "*.*.performance_issue_unique = 0",
            "*.*.performance_issue_same = 1",
            "*.*.performance_issue_same_index = {}".format(min(_SAME_INDEX, performance_samples - 1)),
        ]
    return "".join(line + "\n" for line in lines)
