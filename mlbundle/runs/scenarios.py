"""Scenarios as users ask for them: options by name, from the command line or YAML, checked and put into units."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from typing import TYPE_CHECKING, Any

from mlbundle.errors import StorageFailed, UsageError
from mlbundle.wire.passes import MOST_BATCH_SIZES
from mlbundle.wire.scenarios import (
    BY_NAME,
    CHOICE,
    COUNT,
    COUNTS,
    FILE,
    FLAG,
    NAMES,
    NUMBER,
    SECONDS,
    WARM_UP,
    Option,
    ScenarioSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECOND_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_EXPONENTS = {"ns": "e-9", "us": "e-6", "ms": "e-3"}
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ns|us|ms|s|m|h)?\Z")
_MOST_ARRIVALS = 100_000
_MOST_OFFERED = 10_000_000
_MOST_FILE_BYTES = 16 << 20
# What says how long to measure: with one of these, a duration has no meaning.
_INSTEAD_OF_DURATION = ("queries", "samples", "arrivals")
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def scenario_options(
    name: str, given: Mapping[str, Any], places: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the options of a job for what a user gave, by the names that users write; defaults are filled in.

    The names of a record (`rate_per_s`) are taken as well. Values may be text, as from a command line, or of their
    type, as from YAML; `places` says where an option stands in a file. The options of a scenario that we do not know
    are passed on as they are. Raises UsageError for the first that makes no sense, with the others in its context.
    """
    spec = BY_NAME.get(name)
    if spec is None:
        return dict(given)
    chosen: dict[str, Any] = {}
    problems: list[UsageError] = []
    for written, value in given.items():
        try:
            option = _option(spec, written)
            if option.key in chosen:
                raise UsageError(f"--{option.name} is said twice", hint="leave one of them out")
            chosen[option.key] = read_option(option, value)
        except UsageError as error:
            error.where = error.where or (places or {}).get(written)
            problems.append(error)
    if problems:
        first = problems[0]
        first.context = tuple(f"{error.where or ''}: {error.message}".lstrip(": ") for error in problems[1:])
        raise first
    found = {**spec.defaults(), **chosen}
    _check_together(spec, found)
    if spec.loadgen is None:
        _settle_extent(chosen, found)
    return found


def read_scenario_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Return name and options of a scenario from YAML: `scenario: poisson`, then its options by name.

    Raises UsageError, StorageFailed.
    """
    import yaml

    try:
        document = yaml.safe_load(_small_text(path))
    except OSError as error:
        raise StorageFailed(f"can't read {path}: {error.strerror}", where=str(path)) from error
    # PyYAML calls itself for what is nested, and Python ends that at some depth.
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no YAML: {' '.join(str(error).split())[:200]}", where=str(path)
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("scenario"), str):
        raise UsageError(
            f"{path} names no scenario", where=str(path), hint="scenario: poisson, then its options by name"
        )
    return document.pop("scenario"), {str(name): value for name, value in document.items()}


def places_in_file(path: Path) -> dict[str, str]:
    """Return option -> `file:line` of a scenario file that was read; empty where it has changed meanwhile."""
    import yaml

    try:
        root = yaml.compose(_small_text(path))
    except (OSError, UsageError, UnicodeDecodeError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    if not isinstance(root, yaml.MappingNode):
        return {}
    return {str(key.value): f"{path}:{key.start_mark.line + 1}" for key, _ in root.value}


def check_compliance(options: Mapping[str, Any], *, accuracy: bool) -> None:
    """Raise UsageError for a compliance test that lacks what it is compared with."""
    if "TEST01" in (options.get("compliance") or ()) and not accuracy:
        raise UsageError(
            "TEST01 compares its answers with those of the accuracy run", hint="leave out --no-accuracy"
        )


def read_arrivals(path: Path) -> list[int]:
    """Return arrival times in ns from a file with one time in seconds a line, in rising order, from 0 on.

    Raises UsageError with the line.
    """
    try:
        lines = _small_text(path).split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read the arrivals: {error}", where=str(path)) from None
    if not 0 < len(lines) <= _MOST_ARRIVALS:
        raise UsageError(
            f"{len(lines):,} arrivals, between 1 and {_MOST_ARRIVALS:,} can be replayed", where=str(path)
        )
    arrivals: list[int] = []
    for number, text in enumerate(lines, start=1):
        try:
            time_s = float(text)
        except ValueError:
            time_s = math.nan
        if not 0 <= time_s < 86_400:
            raise UsageError(
                f"{text[:40]!r} is no time in seconds", where=f"{path}:{number}", hint="from 0 to under 86400"
            )
        if arrivals and round(time_s * 1e9) < arrivals[-1]:
            raise UsageError(
                f"{text[:40]} comes before {arrivals[-1] / 1e9:g}, the line above it",
                where=f"{path}:{number}",
                hint="times in rising order",
            )
        arrivals.append(round(time_s * 1e9))
    return arrivals


def _small_text(path: Path) -> str:
    """Return a text that a person wrote. Raises UsageError for one over 16 MiB, OSError, UnicodeDecodeError."""
    with path.open("rb") as stream:
        content = stream.read(_MOST_FILE_BYTES + 1)
    if len(content) > _MOST_FILE_BYTES:
        raise UsageError(f"{path} is larger than 16 MiB", where=str(path), hint="name another file")
    return content.decode("utf-8")


def read_option(option: Option, value: Any) -> Any:
    """Return the value of an option as a job has it, for text or a value of its type. Raises UsageError."""
    if option.kind == FLAG:
        return _flag(option, value)
    if option.kind == SECONDS:
        return _in_range(option, _seconds(option, value))
    if option.kind == WARM_UP:
        return "auto" if value == "auto" else _in_range(option, _seconds(option, value))
    if option.kind == NUMBER:
        return _in_range(option, _number(option, value))
    if option.kind == COUNT:
        return _count(option, value)
    if option.kind in {COUNTS, NAMES}:
        return _listed(option, value)
    if option.kind == CHOICE:
        if value not in option.choices:
            raise _nonsense(option, value, f"one of {', '.join(option.choices)}")
        return value
    if option.kind == FILE:
        from pathlib import Path

        return read_arrivals(Path(str(value)))
    raise AssertionError(option.kind)


def _listed(option: Option, value: Any) -> list[Any]:
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise _nonsense(option, value, "a list such as 1,2,4" if option.kind == COUNTS else "a list of names")
    if option.kind == COUNTS:
        return sorted({_count(option, part) for part in parts})
    for part in parts:
        if part not in option.choices:
            raise _nonsense(option, part, f"one of {', '.join(option.choices)}")
    return list(dict.fromkeys(parts))


def _flag(option: Option, value: Any) -> bool:
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise _nonsense(option, value, "yes or no")


def _seconds(option: Option, value: Any) -> float:
    if isinstance(value, str):
        match = _SECONDS.match(value.strip().lower())
        if match is None:
            raise _nonsense(option, value, "a number and one unit, such as 3s, 500ms, 2m or 1.5h")
        # In decimal: 10us are 0.00001 s, which the product of binary fractions is not.
        exponent = _EXPONENTS.get(match[2])
        if exponent is not None:
            return float(f"{match[1]}{exponent}")
        return float(match[1]) * SECOND_UNITS[match[2] or "s"]
    return _number(option, value)


def _number(option: Option, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _nonsense(option, value, "a number")
    return number


def _count(option: Option, value: Any) -> int:
    number = _number(option, value)
    if number != int(number):
        raise _nonsense(option, value, "a whole number")
    return int(_in_range(option, number))


def _in_range(option: Option, number: float) -> float:
    if (option.least is not None and number < option.least) or (
        option.most is not None and number > option.most
    ):
        unit = " s" if option.kind in {SECONDS, WARM_UP} else ""
        least, most = (
            "-" if bound is None else f"{bound:,.10g}{unit}" for bound in (option.least, option.most)
        )
        raise UsageError(
            f"--{option.name} {number:,.10g}{unit} is out of range", hint=f"between {least} and {most}"
        )
    return number


def _settle_extent(chosen: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Leave out a default duration that nothing would go by. Raises UsageError where a user asked for both."""
    instead = [key for key in _INSTEAD_OF_DURATION if chosen.get(key) is not None]
    if not instead:
        return
    if "duration_s" in chosen:
        raise UsageError(
            f"--{instead[0]} says how long to measure, and so does --duration", hint="leave one of them out"
        )
    found.pop("duration_s", None)


def _check_together(spec: ScenarioSpec, found: Mapping[str, Any]) -> None:
    """Options that need or exclude each other."""
    if spec.name == "poisson":
        loads = [key for key in ("rate_per_s", "arrivals") if found.get(key) is not None]
        if not loads and not found.get("find_peak"):
            raise UsageError(
                "poisson needs a rate, or arrivals to replay",
                hint="--rate 200, or --arrivals FILE; --find-peak finds the rate",
            )
        if len(loads) > 1:
            raise UsageError("--rate and --arrivals both say when samples come", hint="leave one of them out")
        arrivals, queries = found.get("arrivals"), found.get("queries")
        if arrivals is not None and queries is not None and queries > len(arrivals):
            raise UsageError(
                f"--queries {queries:,} are more than the {len(arrivals):,} arrivals of the file",
                hint="leave out --queries: all are replayed",
            )
        if found.get("find_peak") and found.get("arrivals") is not None:
            raise UsageError(
                "arrivals have their rate, and --find-peak looks for one", hint="leave one of them out"
            )
        if found.get("find_peak") and found["repeats"] > 1:
            raise UsageError(
                "--repeats measures the same load again, and each search would find one of its own",
                hint="find the peak first, then repeat --rate with what was found",
            )
        offered = found.get("queries") or (found.get("rate_per_s") or 0) * found["duration_s"]
        if offered > _MOST_OFFERED:
            raise UsageError(
                f"{offered:,.0f} arrivals are more than are drawn beforehand",
                hint=f"at most {_MOST_OFFERED:,}",
            )
    if spec.name == "batched" and len(found.get("batch_sizes") or ()) > MOST_BATCH_SIZES:
        raise UsageError(f"more than {MOST_BATCH_SIZES} batch sizes", hint="name fewer")
    limits = [
        key for key in ("target_latency_s", "ttft_latency_s", "tpot_latency_s") if found.get(key) is not None
    ]
    if "target_latency_s" in limits and len(limits) > 1:
        raise UsageError(
            "with limits for tokens LoadGen looks at no whole answers", hint="leave out --target-latency"
        )
    if found.get("find_peak") and not limits:
        raise UsageError("--find-peak needs the latency that is to be kept to", hint="--target-latency 10ms")
    if spec.loadgen is not None and found.get("quick") and found.get("duration_s"):
        raise UsageError("--quick chooses the duration itself", hint="leave out --quick or --duration")


def _option(spec: ScenarioSpec, written: str) -> Option:
    """Return the option that is written like this, or whose key in a job is. Raises UsageError."""
    option = spec.option(written.replace("_", "-"))
    if option is None:
        option = next((one for one in spec.options if one.key == written), None)
    if option is None:
        raise _unknown(spec, written)
    return option


def _unknown(spec: ScenarioSpec, written: str) -> UsageError:
    names = [option.name for option in spec.options]
    close = difflib.get_close_matches(written, names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return UsageError(
        f"the scenario {spec.name} has no option {written!r}", hint=f"{meant}its options: {', '.join(names)}"
    )


def _nonsense(option: Option, value: Any, wanted: str) -> UsageError:
    # What YAML made of a few lines can be endless when it is written out.
    shown = value[:60] if isinstance(value, str) else reprlib.repr(value)[:60]
    return UsageError(f"--{option.name}: {shown!r} is not what it takes", hint=f"write {wanted}")
