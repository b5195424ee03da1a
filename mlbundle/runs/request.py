"""What a user asks a run for, as texts and choices: what a form holds, and a command line says.

Each field is checked by itself, so that a form can say beside it what is wrong while it is being written.
"""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError
from mlbundle.runs.own_scenarios import PLUG_IN, check_own_name, with_set
from mlbundle.runs.quantities import bytes_text
from mlbundle.runs.request_checks import (
    read_cpus,
    read_file,
    read_memory,
    read_seed,
    read_threads,
    read_timeout,
    read_words,
)
from mlbundle.runs.scenarios import check_compliance, read_option, scenario_options
from mlbundle.runs.words import seconds
from mlbundle.wire.scenarios import BY_NAME, COUNTS, FLAG, NAMES, SECONDS, WARM_UP, Option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlbundle.config import Settings
    from mlbundle.runs.bundle_facts import Form
    from mlbundle.runs.plan import RunOptions, RunPlan

OPTION = "scenario."
"""What the names of the scenario's options begin with among the fields of a request."""
TOGETHER = "together"
"""The field of a problem that several fields make together."""

FAR_AWAY = ("registry", "web")
"""Kinds of references whose bundle is fetched before anything of it is known."""


@dataclass(frozen=True)
class RunRequest:
    """Texts as they are written, empty where nothing was; `options` are the scenario's, by name, flags as `yes`.

    Options that the scenario does not have are kept and passed over: another scenario may have them. A scenario of
    one's own is `plugin:NAME`, and its options are the words of `own_options`: `size=10 'name=two words'`.
    """

    reference: str = ""
    framework: str = ""
    scenario: str = "online"
    options: Mapping[str, str] = field(default_factory=dict)
    own_options: str = ""
    runtime: str = "auto"
    accelerator: str = "cpu"
    threads: str = ""
    cpus: str = ""
    memory: str = ""
    trace_level: str = "model"
    accuracy: bool = True
    trust: bool = False
    architecture: str = ""
    python: str = ""
    seed: str = ""
    timeout: str = ""
    concurrent: bool = False
    plain_http: bool = False
    ca_file: str = ""

    @classmethod
    def of_settings(cls, settings: Settings, reference: str = "") -> RunRequest:
        """Return what is asked for when nothing is said."""
        return cls(reference=reference, runtime=settings.runtime, trace_level=settings.trace_level)

    @property
    def own_scenario(self) -> str | None:
        """The name of a scenario of one's own, None where it is one of ours."""
        own = self.scenario.startswith(PLUG_IN)
        return self.scenario.removeprefix(PLUG_IN).strip() if own else None

    @property
    def chosen_options(self) -> dict[str, str]:
        """The options that were written and that the scenario has; none of one of one's own."""
        spec = BY_NAME.get(self.scenario)
        if spec is None:
            return {}
        texts = {name: text.strip() for name, text in self.options.items() if spec.option(name) is not None}
        return {name: text for name, text in texts.items() if text}

    def problems(self) -> dict[str, UsageError]:
        """Return field -> what is wrong with it, nothing when the command line would take it all.

        Fields are called as the members here, options `scenario.NAME`. Looks at no files but those that are named.
        """
        found: dict[str, UsageError] = {}
        if not self.reference.strip():
            found["reference"] = UsageError("no bundle is chosen", hint="a name, a file, a folder or oci://…")
        for name, check in _CHECKS.items():
            _note(found, name, check, getattr(self, name))
        own = self.own_scenario
        if own is not None:
            _note(found, "scenario", check_own_name, own)
            _note(found, "own_options", lambda text: with_set({}, read_words(text)), self.own_options)
            return found
        spec = BY_NAME[self.scenario]
        for name, text in self.chosen_options.items():
            option = spec.option(name)
            assert option is not None
            _note(found, OPTION + name, lambda text, option=option: read_option(option, text), text)
        if not any(name.startswith(OPTION) for name in found):
            _note(found, TOGETHER, lambda _: self.read_options(), "")
        return found

    def read_options(self) -> dict[str, Any]:
        """Return the scenario's options as a job has them. Raises UsageError."""
        if self.own_scenario is not None:
            return with_set({}, read_words(self.own_options))
        options = scenario_options(self.scenario, self.chosen_options)
        check_compliance(options, accuracy=self.accuracy)
        return options

    def arguments(self, settings: Settings) -> list[str]:
        """Return the arguments of `mlbundle run` that ask for the same; what is the default is left out."""
        found = []
        said = {
            "--framework": (self.framework, ""),
            "--scenario": (self.scenario, "online"),
            "--runtime": (self.runtime, settings.runtime),
            "--accelerator": (self.accelerator, "cpu"),
            "--arch": (self.architecture, ""),
            "--threads": (self.threads, ""),
            "--cpus": (self.cpus, ""),
            "--memory": (self.memory, ""),
            "--trace": (self.trace_level, settings.trace_level),
            "--seed": (self.seed, ""),
            "--timeout": (self.timeout, ""),
            "--python": (self.python, ""),
            "--ca-file": (self.ca_file, ""),
        }
        for name, (text, default) in said.items():
            if text.strip() and text.strip() != default:
                found += [name, text.strip()]
        found += self._scenario_arguments()
        flags = {
            "--no-accuracy": not self.accuracy,
            "--trust": self.trust,
            "--concurrent": self.concurrent,
            "--plain-http": self.plain_http,
        }
        found += [name for name, said in flags.items() if said]
        reference = self.reference.strip()
        return [*found, "--", reference] if reference.startswith("-") else [reference, *found]

    def _scenario_arguments(self) -> list[str]:
        found: list[str] = []
        spec = BY_NAME.get(self.scenario)
        for name, text in self.chosen_options.items():
            option = None if spec is None else spec.option(name)
            flag = option is not None and option.kind == FLAG
            found += [f"--{name}"] if flag else [f"--{name}", text]
        if self.own_scenario is not None:
            # What can't be taken apart stands as it is written: the command line is shown while that goes on.
            try:
                words = read_words(self.own_options)
            except UsageError:
                words = [self.own_options.strip()]
            for word in words:
                found += ["--set", word]
        return found

    def command_text(self, settings: Settings) -> str:
        """Return the command that asks for the same, as a line for a shell; empty without a bundle."""
        if not self.reference.strip():
            return ""
        return shlex.join(["mlbundle", "run", *self.arguments(settings)])

    def run_options(self, settings: Settings, *, dry_run: bool = False) -> RunOptions:
        """Return what a plan is made of; its `command` holds the arguments. Raises the first problem."""
        from mlbundle.runs.network import Network
        from mlbundle.runs.plan import RunOptions

        for problem in self.problems().values():
            raise problem
        return RunOptions(
            reference=self.reference.strip(),
            framework=self.framework.strip() or None,
            architecture=self.architecture or None,
            runtime=self.runtime,
            accelerator=self.accelerator,
            scenario=self.own_scenario or self.scenario,
            scenario_options=self.read_options(),
            accuracy=self.accuracy,
            trace_level=self.trace_level,
            threads=read_threads(self.threads) or 1,
            cpus=read_cpus(self.cpus),
            memory_bytes=read_memory(self.memory) or settings.memory_bytes,
            hang_timeout_s=read_timeout(self.timeout) or settings.hang_timeout_s,
            seed=read_seed(self.seed) or 0,
            trust=self.trust,
            python=read_file(self.python),
            concurrent=self.concurrent,
            network=Network(plain_http=self.plain_http, ca_file=read_file(self.ca_file)),
            dry_run=dry_run,
            command=("mlbundle", "run", *self.arguments(settings)),
        )


_CHECKS: dict[str, Callable[[str], object]] = {
    "threads": read_threads,
    "cpus": read_cpus,
    "memory": read_memory,
    "seed": read_seed,
    "timeout": read_timeout,
    "python": read_file,
    "ca_file": read_file,
}


def default_text(option: Option) -> str:
    """Return what an option is when nothing is said, as it would be written; empty where there is no such value."""
    if option.kind == FLAG:
        return "no"
    if option.default is None:
        return ""
    if option.kind in {SECONDS, WARM_UP} and isinstance(option.default, int | float):
        return seconds(option.default)
    if option.kind in {COUNTS, NAMES}:
        return ",".join(map(str, option.default))
    return f"{option.default:g}" if isinstance(option.default, float) else str(option.default)


def range_text(option: Option) -> str:
    """Return between what a value must be, empty where anything goes."""
    if option.choices:
        return ", ".join(option.choices)
    if option.least is None or option.most is None:
        return ""
    words = seconds if option.kind in {SECONDS, WARM_UP} else "{:,.10g}".format
    return f"{words(option.least)} to {words(option.most)}"


def memory_default(settings: Settings) -> str:
    """Return the memory limit that a run has when nothing is said, as it would be written."""
    return bytes_text(settings.memory_bytes)


def timeout_default(settings: Settings) -> str:
    """Return how long a worker may be silent when nothing is said, as it would be written."""
    return seconds(settings.hang_timeout_s)


def forms_of(reference: str, settings: Settings) -> tuple[Form, ...]:
    """Return the forms of a bundle that is here, the top level's first; none of one that is far away.

    Raises what opening it raises.
    """
    from mlbundle.runs.bundle_facts import facts_of_manifest, facts_of_reader
    from mlbundle.runs.opening import open_found
    from mlbundle.runs.references import resolve

    found = resolve(reference, settings)
    if found.kind in FAR_AWAY:
        return ()
    if found.kind == "manifest":
        return facts_of_manifest(found.path).forms
    with open_found(found, settings) as reader:
        return facts_of_reader(reader).forms


def explain_request(request: RunRequest, settings: Settings) -> dict[str, Any]:
    """Return what a run would do, without doing it: `explain` of its plan. Nothing is fetched, nothing is left open.

    Raises UsageError for a bundle that is far away, and what `make_plan` raises.
    """
    from mlbundle.runs.explain import explain
    from mlbundle.runs.plan import make_plan
    from mlbundle.runs.references import resolve

    options = request.run_options(settings, dry_run=True)
    if resolve(options.reference, settings).kind in FAR_AWAY:
        raise UsageError(
            "the bundle is not here yet", where=options.reference, hint="the run pulls it first, and keeps it"
        )
    plan: RunPlan = make_plan(options, settings)
    if plan.client is None:
        return explain(plan, settings)
    with closing(plan.client):
        return explain(plan, settings)


def _note(found: dict[str, UsageError], name: str, check: Any, text: str) -> None:
    try:
        check(text)
    except UsageError as error:
        found[name] = error
