"""The environment of a run, as its record tells it: an allow-list, because records are shared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.platforms import cpu_ranges, machine_facts, topology
from mlbundle.runs.quiet import Demand, Notice, Quiet
from mlbundle.runs.redaction import redacted
from mlbundle.runtime.devices import gpus
from mlbundle.runtime.facts import capped
from mlbundle.wire.variables import telling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle.runs.plan import RunPlan
    from mlbundle.wire.events import Hello

_ROOT = Path("/")


class Surroundings:
    """What is looked at around a run: `before` its worker starts and `after` it has ended."""

    def __init__(self, plan: RunPlan) -> None:
        limits = plan.limits
        demand = Demand(
            threads=limits.threads,
            cpus=tuple(limits.cpus),
            gpu=plan.options.accelerator == "gpu",
            own_group=plan.runtime.name == "process",
        )
        self._client = plan.client
        self._quiet = Quiet(demand)
        self._engine: dict[str, Any] | None = None

    def before(self) -> list[Notice]:
        """Look at the machine and the engine; returns what may disturb the run."""
        if self._client is not None:
            self._engine = engine_document(self._client)
        return self._quiet.before()

    def after(self) -> list[Notice]:
        """Look at the machine again; returns what disturbed the run."""
        return self._quiet.after()

    def to_document(self) -> dict[str, Any]:
        """Return `engine`, `cpus_used`, `state` and `warnings`, as far as they were looked at."""
        return {
            "engine": self._engine,
            "cpus_used": topology().describe(self._quiet.cpus),
            **self._quiet.to_document(),
        }


def machine_document(*, with_gpus: bool, root: Path = _ROOT) -> dict[str, Any]:
    """Return the facts about this machine; `gpus` is None when nobody looks, for that can take a second."""
    found = [gpu.to_document() for gpu in gpus(root)] if with_gpus else None
    return {**machine_facts(root).to_document(), "gpus": found}


def engine_document(client: Any) -> dict[str, Any] | None:
    """Return what kind of container engine answers (`docker`, `podman`) and its version; None when it does not."""
    try:
        version = client.version()
        components = [str(component.get("Name")) for component in version.get("Components") or []]
        podman = any("podman" in name.lower() for name in components)
        return {
            "kind": "podman" if podman else "docker",
            "version": str(version.get("Version")),
            "platform": f"{version.get('Os')}/{version.get('Arch')}",
        }
    except Exception:  # noqa: BLE001 - a fact that can't be had must not end a run
        return None


def build_environment(
    plan: RunPlan,
    hello: Hello | None,
    surroundings: Surroundings | None,
    framework: Any,
    isolation: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the `environment` of a record; `framework` is what the framework said of itself, not checked yet."""
    limits, contained = plan.limits, plan.runtime.name == "docker"
    return {
        "machine": machine_document(with_gpus=plan.options.accelerator == "gpu"),
        "worker": {} if hello is None else _worker(hello),
        "distributions": {} if hello is None else hello.facts.get("distributions", {}),
        "framework": redacted(capped(framework)) if isinstance(framework, dict) else {},
        "limits": {
            "threads": limits.threads,
            "cpus": list(limits.cpus),
            "memory_bytes": limits.memory_bytes if contained or isolation.get("memory_limit") else None,
            "pids": limits.pids if contained else None,
            "scratch_bytes": limits.scratch_bytes,
        },
        "isolation": isolation["summary"],
        "emulated": plan.emulated,
        **({"python_environment": redacted(isolation["environment"])} if "environment" in isolation else {}),
        **({} if surroundings is None else surroundings.to_document()),
    }


def _worker(hello: Hello) -> dict[str, Any]:
    """Return what the worker said of its place; the variables go through the list once more."""
    facts = hello.facts
    return {
        **hello.versions,
        **{name: facts.get(name) for name in ("machine", "libc")},
        # How often the quota stopped it so far is no limit, and 0 when it says hello.
        "cgroup": {name: limit for name, limit in facts.get("cgroup", {}).items() if name != "throttled"},
        "cpus": cpu_ranges(facts.get("cpus", [])),
        "variables": telling(facts.get("variables", {}), str(Path.home())),
    }
