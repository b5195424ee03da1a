"""The fields of the form of a run, made from the table of scenarios and from the bundle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Vertical
from textual.widgets import Static

from mlbundle.errors import MlbundleError
from mlbundle.manifest.problems import printable
from mlbundle.platforms.names import ACCELERATORS
from mlbundle.runs.request import OPTION, TOGETHER, RunRequest, default_text, memory_default, range_text
from mlbundle.wire.scenarios import BY_NAME, CHOICE, FLAG, SCENARIOS
from mlbundle_tui.widgets.field import Field, FieldSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual.widget import Widget

    from mlbundle.config import Settings
    from mlbundle.errors import UsageError
    from mlbundle.runs.bundle_facts import Form
    from mlbundle.wire.scenarios import Option

_MOST_NAMES = 2000
_YES_NO = (("yes", "yes"), ("", "no"))
_FLAGS = ("accuracy", "trust")
_RUNTIMES = (
    ("auto", "auto: a container where an image is ready"),
    ("docker", "docker: a container"),
    ("process", "process: on this machine"),
)
_LEVELS = (
    ("none", "none"),
    ("model", "model: steps of the pipeline"),
    ("framework", "framework: and layers"),
    ("system", "system: and kernels"),
    ("full", "full: and all that can be had"),
)


def fields(request: RunRequest, settings: Settings) -> Iterator[Widget]:
    """Yield the fields of a form with what a request says."""
    yield _group("what")
    yield _field(
        FieldSpec("reference", "bundle", "A name, a file, a folder, oci://HOST/NAME:VERSION; 1 shows what is here.",
                  default="enter writes a name here"), request,
    )  # fmt: skip
    yield _field(framework_spec(()), request)
    yield _group("load")
    yield _field(
        FieldSpec("scenario", "scenario", "How load is put on.",
                  choices=[(spec.name, f"{spec.name}: {spec.summary}") for spec in SCENARIOS]), request,
    )  # fmt: skip
    yield Vertical(*option_fields(request), id="scenario-options")
    yield _group("where")
    for spec in _where(settings):
        yield _field(spec, request)
    yield _group("looks at")
    about = "How deep the trace looks; beyond `model` it has passes of its own, after those that measure."
    yield _field(FieldSpec("trace_level", "trace", about, choices=_LEVELS), request)
    yield _field(
        FieldSpec("accuracy", "accuracy", "Check the accuracy against the claim.", choices=_YES_NO), request
    )


def option_fields(request: RunRequest) -> list[Field]:
    """Return the fields of the options that the scenario of a request has."""
    return [
        Field(_option_spec(option), request.options.get(option.name, ""))
        for option in BY_NAME[request.scenario].options
    ]


def framework_spec(forms: Sequence[Form]) -> FieldSpec:
    """Return the field of the bundle's form for its frameworks; a text as long as they are not known."""
    about = "The form of the model that runs; of some frameworks there are several."
    if not forms:
        return FieldSpec("framework", "framework", about, default="the bundle's first")
    choices = [("", f"{forms[0].name} {forms[0].version}")]
    choices += [(form.name, f"{form.name} {form.version}") for form in forms[1:]]
    return FieldSpec("framework", "framework", about, choices=choices)


def with_value(request: RunRequest, key: str, value: str) -> RunRequest:
    """Return a request with another value in a field."""
    if key.startswith(OPTION):
        return replace(request, options={**request.options, key.removeprefix(OPTION): value})
    if key == "accuracy":
        return replace(request, accuracy=bool(value))
    if key == "trust":
        return replace(request, trust=bool(value))
    return replace(request, **{key: value})  # type: ignore[arg-type]


def about(spec: FieldSpec, scenario: str, problem: UsageError | None) -> Text:
    """Return what a field is about, its range and default, or what is wrong with it."""
    if problem is not None:
        hint = f"\n{printable(problem.hint)}" if problem.hint else ""
        return Text.assemble(("! ", "bold red"), (printable(problem.message), "bold"), hint)
    text = Text(spec.about)
    option = BY_NAME[scenario].option(spec.key.removeprefix(OPTION)) if spec.key.startswith(OPTION) else None
    between = range_text(option) if option is not None else ""
    if between:
        text.append(f"\n{between}", style="dim")
    if spec.default and spec.key != "reference":
        text.append(f"{'; ' if between else chr(10)}default {spec.default}", style="dim")
    return text


def bundle_names(settings: Settings) -> list[str]:
    """Return names that can be written for a bundle: the built-in ones and the library's."""
    from mlbundle.resources import built_in_models
    from mlbundle.store.library import Library

    try:
        entries = Library(settings.data_dir).entries()[:_MOST_NAMES]
    except MlbundleError:
        entries = []
    return list(dict.fromkeys([*built_in_models(), *(entry.label for entry in entries)]))


def forms(reference: str, settings: Settings) -> tuple[Form, ...]:
    """Return the forms of a bundle, none where it can't be opened: the plan says why."""
    from mlbundle.runs.request import forms_of

    try:
        return forms_of(reference, settings)
    except MlbundleError:
        return ()


def name_of(key: str) -> str:
    """Return how a field is called on the screen."""
    return {"trace_level": "trace", "reference": "bundle", TOGETHER: "scenario"}.get(
        key, key.removeprefix(OPTION)
    )


def _where(settings: Settings) -> list[FieldSpec]:
    return [
        FieldSpec("runtime", "runtime", "Where the worker runs.", choices=_RUNTIMES),
        FieldSpec("accelerator", "accelerator", "What to run on.", choices=[(a, a) for a in ACCELERATORS]),
        FieldSpec("threads", "threads", "Threads of the framework, 1 to 1024.", default="1"),
        FieldSpec("cpus", "cpus", "Pin to these CPUs: 0 or 0,2 or 0-3. This screen keeps off them.", default="all"),
        FieldSpec("memory", "memory", "Memory limit of the container, or of each process of the worker.",
                  default=memory_default(settings)),
        FieldSpec("trust", "trust", "Let code of the bundle run outside a container.", choices=_YES_NO),
    ]  # fmt: skip


def _option_spec(option: Option) -> FieldSpec:
    key = OPTION + option.name
    if option.kind == FLAG:
        return FieldSpec(key, option.name, option.help, choices=_YES_NO)
    if option.kind == CHOICE:
        choices = [("", "as is best")] if option.default is None else []
        return FieldSpec(
            key, option.name, option.help, choices=[*choices, *((name, name) for name in option.choices)]
        )
    return FieldSpec(key, option.name, option.help, default=default_text(option))


def _field(spec: FieldSpec, request: RunRequest) -> Field:
    value = getattr(request, spec.key)
    return Field(spec, ("yes" if value else "") if spec.key in _FLAGS else str(value))


def _group(title: str) -> Static:
    return Static(title, classes="group", markup=False)
