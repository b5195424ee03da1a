"""The fields of the form of a run, made from the table of scenarios and from the bundle."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text
from textual.containers import Vertical
from textual.widgets import Static

from mlbundle.errors import MlbundleError
from mlbundle.manifest.problems import printable
from mlbundle.platforms.names import ACCELERATORS, ARCHITECTURES
from mlbundle.runs.own_scenarios import PLUG_IN
from mlbundle.runs.request import (
    OPTION,
    TOGETHER,
    RunRequest,
    default_text,
    memory_default,
    range_text,
    timeout_default,
)
from mlbundle.wire.scenarios import BY_NAME, CHOICE, FLAG, SCENARIOS
from mlbundle_tui.widgets.field import Field, FieldSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual.widget import Widget

    from mlbundle.config import Settings
    from mlbundle.errors import UsageError
    from mlbundle.runs.bundle_facts import Form
    from mlbundle.runs.network import Network
    from mlbundle.wire.scenarios import Option

_MOST_NAMES = 2000
_YES_NO = (("yes", "yes"), ("", "no"))
_FLAGS = ("accuracy", "trust", "concurrent", "plain_http")
ADVANCED = "advanced"
"""The field that unfolds those that are seldom written. Only `--detach` and how the result is printed are left out of
the form: every run that it starts is detached, and `--dry-run` is the pane beside it. `--scenario-file` is a form
that is filled in."""
OWN_NAME = "own_name"
CHOSEN = ("reference", "framework", "plain_http", "ca_file")
"""The fields that another bundle writes anew."""
_NAMES = {
    "trace_level": "trace", "reference": "bundle", TOGETHER: "scenario", "architecture": "arch",
    "own_options": "options", "plain_http": "plain-http", "ca_file": "ca-file", OWN_NAME: "name",
}  # fmt: skip
_SELDOM = ("architecture", "seed", "timeout", "python", "concurrent", "plain_http", "ca_file")
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
    yield Field(_scenario_spec(), _scenario_choice(request))
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
    yield _group("advanced")
    yield Field(advanced_spec(request))
    yield Vertical(*(_field(spec, request) for spec in _advanced(settings)), id="advanced-fields")


def is_advanced(key: str) -> bool:
    """Return whether a field is among those that are folded."""
    return key in _SELDOM


def advanced_spec(request: RunRequest) -> FieldSpec:
    """Return the field that unfolds the rest; it names those that say something while they are folded."""
    said = [name_of(key) for key in _SELDOM if getattr(request, key)]
    folded = f"folded; {', '.join(said)} said" if said else "folded"
    about = f"Options that are seldom written: {', '.join(map(name_of, _SELDOM))}."
    return FieldSpec(ADVANCED, "options", about, choices=(("", folded), ("yes", "unfolded")))


def option_fields(request: RunRequest, own_names: Sequence[str] = ()) -> list[Field]:
    """Return the fields of the options that the scenario of a request has; `own_names` are offered for its name."""
    own = request.own_scenario
    if own is not None:
        name = FieldSpec(
            OWN_NAME, "name", "The entry point of your scenario, in the group mlbundle.scenarios there."
        )
        field = Field(name, own)
        field.suggestions = own_names
        about = "Its options, as they reach it: size=10 'name=two words'."
        return [field, Field(FieldSpec("own_options", "options", about, default="none"), request.own_options)]
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
    if key == OWN_NAME:
        return replace(request, scenario=PLUG_IN + value.strip())
    if key == ADVANCED:
        return request
    if key in _FLAGS:
        return replace(request, **{key: bool(value)})  # type: ignore[arg-type]
    return replace(request, **{key: value})  # type: ignore[arg-type]


def of_chosen(request: RunRequest, reference: str, network: Network | None) -> RunRequest:
    """Return a request for a bundle that was chosen elsewhere, whose registry may be reached in a way of its own."""
    plain = network is not None and network.plain_http
    ca_file = str(network.ca_file) if network is not None and network.ca_file is not None else ""
    return replace(request, reference=reference, framework="", plain_http=plain, ca_file=ca_file)


def value_of(request: RunRequest, key: str) -> str:
    """Return what a field of a request shows."""
    value = getattr(request, key)
    return ("yes" if value else "") if key in _FLAGS else str(value)


def about(spec: FieldSpec, value: str, scenario: str, problem: UsageError | None) -> Text:
    """Return what a field is about, what is chosen in it, its range and default, or what is wrong with it."""
    if problem is not None:
        hint = f"\n{printable(problem.hint)}" if problem.hint else ""
        return Text.assemble(("! ", "bold red"), (printable(problem.message), "bold"), hint)
    text = Text(spec.about)
    _, meaning = spec.parts_of(value)
    if meaning:
        text.append(f"\n{meaning}", style="dim")
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
    from mlbundle.runs.shelf import library_labels

    try:
        names = library_labels(settings, _MOST_NAMES)
    except (MlbundleError, sqlite3.Error):
        names = []
    return list(dict.fromkeys([*built_in_models(), *names]))


def own_scenarios() -> list[str]:
    """Return the names of scenarios of others that are installed beside us."""
    from mlbundle.runs.own_scenarios import installed_scenarios

    return installed_scenarios()


def forms(reference: str, settings: Settings) -> tuple[Form, ...]:
    """Return the forms of a bundle, none where it can't be opened: the plan says why."""
    from mlbundle.runs.request import forms_of

    try:
        return forms_of(reference, settings)
    except MlbundleError:
        return ()


def name_of(key: str) -> str:
    """Return how a field is called on the screen."""
    return _NAMES.get(key, key.removeprefix(OPTION))


def field_of(key: str, request: RunRequest) -> str:
    """Return the key of the field in which a problem is mended."""
    if key == "scenario" and request.own_scenario is not None:
        return OWN_NAME
    return "scenario" if key == TOGETHER else key


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


def _advanced(settings: Settings) -> list[FieldSpec]:
    emulated = "Run the image of this architecture, emulated where it is not the machine's."
    return [
        FieldSpec("architecture", "arch", emulated,
                  choices=[("", "the machine's"), *((name, name) for name in ARCHITECTURES)]),
        FieldSpec("seed", "seed", "Order of the samples.", default="0"),
        FieldSpec("timeout", "timeout", "Longest silence of the worker.", default=timeout_default(settings)),
        FieldSpec("python", "python", "A file: use this Python (process, unpinned).", default="the bundle's own"),
        FieldSpec("concurrent", "concurrent", "Do not wait for other measurements; the result is marked.",
                  choices=_YES_NO),
        FieldSpec("plain_http", "plain-http", "Talk to registries and web servers without TLS; for tests only.",
                  choices=_YES_NO),
        FieldSpec("ca_file", "ca-file", "A file of certificates (PEM) to trust beside the system's.", default="none"),
    ]  # fmt: skip


def _scenario_spec() -> FieldSpec:
    choices = [(spec.name, f"{spec.name}: {spec.summary}") for spec in SCENARIOS]
    own = (PLUG_IN, f"{PLUG_IN}NAME: one of your own, installed where the worker runs")
    return FieldSpec("scenario", "scenario", "How load is put on.", choices=[*choices, own])


def _scenario_choice(request: RunRequest) -> str:
    return request.scenario if request.own_scenario is None else PLUG_IN


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
    return Field(spec, value_of(request, spec.key))


def _group(title: str) -> Static:
    return Static(title, classes="group", markup=False)
