"""A matrix of values becomes cells: each is the arguments of one `mlbundle run` that could run anywhere."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle.errors import UsageError
from mlbundle.platforms import ACCELERATORS, ARCHITECTURES
from mlbundle.runs.own_scenarios import PLUG_IN
from mlbundle.runs.scenarios import check_compliance, scenario_options
from mlbundle.runs.sweep_estimate import planned_seconds
from mlbundle.wire.scenarios import BY_NAME, FILE, FLAG, SCENARIOS, Option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_CELLS = 10_000
MOST_ROUNDS = 1000
SCENARIO = "scenario"
ALL_FRAMEWORKS = "all"
_CPUS = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*\Z", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,18}\Z", re.ASCII)
_YES = frozenset({"true", "yes", "on", "1"})


class Axis(NamedTuple):
    """A value of a run that a sweep can vary: its option of `mlbundle run`, and what it may be."""

    flag: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    pattern: re.Pattern[str] | None = None


AXES: dict[str, Axis] = {
    SCENARIO: Axis("--scenario"),
    "framework": Axis("--framework"),
    "runtime": Axis("--runtime", choices=("auto", "docker", "process")),
    "accelerator": Axis("--accelerator", choices=ACCELERATORS),
    "arch": Axis("--arch", choices=ARCHITECTURES),
    "threads": Axis("--threads", least=1, most=1024, pattern=_INTEGER),
    "cpus": Axis("--cpus", pattern=_CPUS),
    "seed": Axis("--seed", pattern=_INTEGER),
}
"""What every scenario has; the options of scenarios are axes too."""

_FIRST = (SCENARIO, "framework")


@dataclass(frozen=True)
class Matrix:
    """What a sweep is asked for.

    `axes` are texts by name, as users write them: those of AXES and options of scenarios. `fixed` are further
    arguments of each run, `sets` values of `--set`. A cell that has, for each key of one of `exclude`, one of its
    values is left out. `places` say where an axis stands in `where`, the file, if there is one.
    """

    reference: str
    axes: Mapping[str, tuple[str, ...]]
    fixed: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    exclude: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    rounds: int = 1
    where: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    def error(self, message: str, axis: str = "", hint: str | None = None) -> UsageError:
        """Return the error of an axis, at its place."""
        return UsageError(message, where=self.places.get(axis, self.where), hint=hint)


class Forms(NamedTuple):
    """What a model can be run as: the `names` of its forms, the top level's first, and of their `frameworks`."""

    names: tuple[str, ...]
    frameworks: tuple[str, ...] = ()

    def has(self, wanted: str) -> bool:
        """Whether `mlbundle run --framework` takes this; case does not matter."""
        return wanted.casefold() in {name.casefold() for name in (*self.names, *self.frameworks)}


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: numbers count from 1, `values` are the axes that it has.

    `planned_s` is how long it will measure, None where its options do not say.
    """

    number: int
    round: int
    scenario: str
    values: Mapping[str, str]
    planned_s: float | None
    arguments: tuple[str, ...]


def axis_names() -> list[str]:
    """Return the name of every axis: what each run has, then the options of scenarios."""
    return list(dict.fromkeys([*AXES, *(option.name for spec in SCENARIOS for option in spec.options)]))


def make_cells(matrix: Matrix, digest: str, forms: Forms) -> list[Cell]:
    """Return the cells of a matrix in the order in which they run: all of a round, then the next round.

    `digest` names the bundle, `forms` are those of its model. An option of a scenario makes cells only of
    scenarios that have it. Raises UsageError for values that make no sense, and for too many cells or none.
    """
    axes = _checked_axes(matrix, forms)
    _require_few(matrix, axes)
    made = []
    for scenario in axes[SCENARIO]:
        own = {name: values for name, values in axes.items() if _applies(name, scenario)}
        own[SCENARIO] = (scenario,)
        for combination in product(*own.values()):
            values = dict(zip(own, combination, strict=True))
            if not _excluded(values, matrix.exclude):
                options = _job_options(matrix, scenario, values)
                planned_s = planned_seconds(scenario, options)
                made.append((scenario, values, planned_s, _arguments(matrix, digest, values)))
    if not made:
        raise matrix.error("nothing is left to run: every cell is excluded", "exclude")
    return [
        Cell(number, round_, scenario, values, planned_s, arguments)
        for number, (round_, (scenario, values, planned_s, arguments)) in enumerate(
            product(range(1, matrix.rounds + 1), made), start=1
        )
    ]


def varying(cells: Sequence[Cell]) -> list[str]:
    """Return the names of the axes that tell cells from each other, scenario and framework always."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.values))
    found = [name for name in names if len({cell.values.get(name) for cell in cells}) > 1]
    return [*(name for name in _FIRST if name in names), *(name for name in found if name not in _FIRST)]


def _checked_axes(matrix: Matrix, forms: Forms) -> dict[str, tuple[str, ...]]:
    """Return the axes, scenario and framework first, each value once, after looking at every value."""
    if not 1 <= matrix.rounds <= MOST_ROUNDS:
        raise matrix.error(f"{matrix.rounds} rounds: between 1 and {MOST_ROUNDS} can be made", "rounds")
    axes = {SCENARIO: ("online",), "framework": forms.names[:1], **matrix.axes}
    if axes["framework"] == (ALL_FRAMEWORKS,):
        axes["framework"] = forms.names
    for name, values in axes.items():
        if not values:
            raise matrix.error(f"{name} has no values", name)
        for value in values:
            _check_value(matrix, name, value, forms)
        axes[name] = tuple(dict.fromkeys(values))
    for name in axes:
        if not any(_applies(name, scenario) for scenario in axes[SCENARIO]):
            _refuse_option(matrix, name, axes[SCENARIO])
    for rule in matrix.exclude:
        for name in rule:
            if name not in axes:
                raise matrix.error(
                    f"what is to be excluded speaks of {name!r}, which is no axis of this sweep", "exclude"
                )
    return axes


def _check_value(matrix: Matrix, name: str, value: str, forms: Forms) -> None:
    if name == SCENARIO:
        _check_scenario(matrix, value)
    elif name == "framework":
        if not forms.has(value):
            hint = f"one of: {', '.join(forms.names)}; or all"
            raise matrix.error(f"the model has no variant for {value!r}", name, hint)
    elif name in AXES:
        _check_general(matrix, name, value)


def _check_scenario(matrix: Matrix, value: str) -> None:
    if value in BY_NAME or (value.startswith(PLUG_IN) and len(value) > len(PLUG_IN)):
        return
    import difflib

    close = difflib.get_close_matches(value, BY_NAME, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    hint = f"{meant}one of: {', '.join(BY_NAME)}; one of your own is written {PLUG_IN}NAME"
    raise matrix.error(f"unknown scenario {value!r}", SCENARIO, hint)


def _check_general(matrix: Matrix, name: str, value: str) -> None:
    axis = AXES[name]
    if axis.choices and value not in axis.choices:
        raise matrix.error(f"{axis.flag} can't be {value!r}", name, f"one of: {', '.join(axis.choices)}")
    if axis.pattern is not None and axis.pattern.match(value) is None:
        example = "0 or 0-3" if name == "cpus" else "a whole number"
        raise matrix.error(f"{axis.flag} can't be {value!r}", name, f"write {example}")
    if axis.least is not None and axis.most is not None and not axis.least <= int(value) <= axis.most:
        raise matrix.error(
            f"{axis.flag} {value} is out of range", name, f"between {axis.least} and {axis.most}"
        )


def _refuse_option(matrix: Matrix, name: str, scenarios: Sequence[str]) -> None:
    import difflib

    owners = [spec.name for spec in SCENARIOS if spec.option(name) is not None]
    if owners:
        hint = f"it belongs to {', '.join(owners)}"
        if name == "repeats":
            hint += "; --rounds runs all cells several times"
        raise matrix.error(f"no scenario of the sweep has an option {name!r}", name, hint)
    if any(scenario.startswith(PLUG_IN) for scenario in scenarios):
        hint = f"options of a scenario of your own are set for all cells: --set {name}=VALUE"
    else:
        close = difflib.get_close_matches(name, axis_names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of: {', '.join(axis_names())}"
    raise matrix.error(f"there is no axis {name!r}", name, hint)


def _require_few(matrix: Matrix, axes: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a flood of cells before making them."""
    count = matrix.rounds * sum(
        math.prod(
            len(values) for name, values in axes.items() if name != SCENARIO and _applies(name, scenario)
        )
        for scenario in axes[SCENARIO]
    )
    if count > MOST_CELLS:
        raise matrix.error(f"{count:,} cells are too many", hint=f"at most {MOST_CELLS:,}; leave values out")


def _option(scenario: str, name: str) -> Option | None:
    spec = BY_NAME.get(scenario)
    return None if spec is None else spec.option(name)


def _applies(name: str, scenario: str) -> bool:
    return name in AXES or _option(scenario, name) is not None


def _excluded(values: Mapping[str, str], rules: Sequence[Mapping[str, tuple[str, ...]]]) -> bool:
    return any(all(values.get(name) in unwanted for name, unwanted in rule.items()) for rule in rules)


def _job_options(matrix: Matrix, scenario: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the job, as `mlbundle run` will read them; so nonsense shows before anything runs."""
    given = {name: value for name, value in values.items() if name not in AXES}
    for text in matrix.sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise matrix.error(f"--set {text}: write NAME=VALUE")
        if name.replace("_", "-") in given:
            raise matrix.error(f"--set {text}: {name} is said twice", hint="leave one of them out")
        given[name] = value
    try:
        options = scenario_options(scenario, given)
        check_compliance(options, accuracy="--no-accuracy" not in matrix.fixed)
        return options
    except UsageError as error:
        axis = next((name for name in given if error.message.startswith(f"--{name}")), SCENARIO)
        raise matrix.error(error.message, axis, error.hint) from None


def _arguments(matrix: Matrix, digest: str, values: Mapping[str, str]) -> tuple[str, ...]:
    found = ["run", digest]
    for name, value in values.items():
        found += _argument(values[SCENARIO], name, value)
    for text in matrix.sets:
        found += ["--set", text]
    return (*found, *matrix.fixed)


def _argument(scenario: str, name: str, value: str) -> Iterator[str]:
    if name in AXES:
        yield from (AXES[name].flag, value)
        return
    option = _option(scenario, name)
    assert option is not None
    if option.kind == FLAG:
        if value.lower() in _YES:
            yield f"--{name}"
        return
    # The cell may be started elsewhere; a value that begins with a dash is none of an option of its own.
    yield f"--{name}={os.path.abspath(value) if option.kind == FILE else value}"  # noqa: PTH100 - no Path methods
