"""The descriptions in a submission: of the system (35 fields) and of what was measured (5 fields).

Fields, and which of them must say something: MLCommons' inference submission rules, v6. What a run record does not
tell and nobody stated is `not stated`: it can be seen, and the check warns about it.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from mlbundle.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NOT_STATED = "not stated"
STATUSES = ("available", "preview", "rdi")
SYSTEM_TYPES = ("edge", "datacenter", "datacenter,edge")
# Field -> whether it must say something.
SYSTEM_FIELDS = {
    "division": True, "submitter": True, "status": True, "system_name": True, "system_type": True,
    "system_type_detail": False, "number_of_nodes": True, "host_processor_model_name": True,
    "host_processors_per_node": True, "host_processor_core_count": True, "host_processor_frequency": False,
    "host_processor_caches": False, "host_processor_interconnect": False, "host_memory_capacity": True,
    "host_memory_configuration": True, "host_storage_capacity": True, "host_storage_type": True,
    "host_networking": True, "host_network_card_count": True, "host_networking_topology": True,
    "accelerators_per_node": True, "accelerator_model_name": True, "accelerator_frequency": False,
    "accelerator_memory_capacity": True, "accelerator_memory_configuration": True,
    "accelerator_host_interconnect": True, "accelerator_interconnect": True,
    "accelerator_interconnect_topology": False, "accelerator_on-chip_memories": False, "cooling": True,
    "framework": True, "operating_system": True, "other_software_stack": True, "hw_notes": False, "sw_notes": False,
}  # fmt: skip
MEASUREMENT_FIELDS = (
    "input_data_types",
    "retraining",
    "starting_weights_filename",
    "weight_data_types",
    "weight_transformations",
)
_FROM_OPTIONS = ("division", "submitter", "status", "system_name", "system_type")
_MOST_DETAILS_BYTES = 1 << 20
_NO_ACCELERATOR = "N/A"


def read_details(path: Path) -> dict[str, str]:
    """Return what a user states about a system and a model: a YAML or JSON file of fields. Raises UsageError."""
    import yaml

    try:
        if path.stat().st_size > _MOST_DETAILS_BYTES:
            raise UsageError("that is no file of details: more than 1 MiB", where=str(path))
        # Every value is a text, as it is written: `no` is an answer and not a truth value.
        document = yaml.load(path.read_text("utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"the details can't be read: {error}", where=str(path)) from None
    known = (SYSTEM_FIELDS.keys() - {*_FROM_OPTIONS}) | {*MEASUREMENT_FIELDS}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise UsageError("details are fields with values, such as `cooling: air`", where=str(path))
    unknown = sorted(document.keys() - known)
    if unknown:
        raise UsageError(
            f"no such field: {', '.join(unknown)}",
            where=str(path),
            hint=f"an option says {unknown[0]}"
            if unknown[0] in _FROM_OPTIONS
            else "fields: " + ", ".join(sorted(known)),
        )
    if not all(isinstance(value, str) for value in document.values()):
        raise UsageError("the value of a field is a text or a number", where=str(path))
    return dict(document)


def describe_system(
    record: Mapping[str, Any], chosen: Mapping[str, str], details: Mapping[str, str]
) -> dict[str, str]:
    """Return the system description; `chosen` are the fields that options give, `details` win over the record."""
    environment = record["environment"]
    machine = environment.get("machine") or {}
    cpu = machine.get("cpu") or {}
    known = {
        **dict.fromkeys((name for name, meaningful in SYSTEM_FIELDS.items() if not meaningful), ""),
        "number_of_nodes": "1",
        "host_processor_model_name": machine.get("cpu_model"),
        "host_processors_per_node": cpu.get("sockets"),
        "host_processor_core_count": cpu.get("cores") or machine.get("cpu_count"),
        "host_processor_frequency": _megahertz(cpu.get("max_khz")),
        "host_processor_caches": _caches(cpu.get("caches") or []),
        "host_memory_capacity": _gibibytes(machine.get("memory_bytes")),
        "operating_system": f"{machine.get('system', 'Linux')} {machine.get('kernel', '')}".strip(),
        "framework": f"{record['framework']['name']} {record['framework']['version']}",
        "other_software_stack": _software(record),
        "hw_notes": "virtual machine" if cpu.get("virtual") else "",
        "sw_notes": f"measured with mlbundle {record['mlbundle_version']}",
        **_accelerators(machine.get("gpus") or [], record),
    }
    stated = {name: str(value) for name, value in known.items() if value not in {None, ""}}
    description = {
        name: NOT_STATED if meaningful else stated.get(name, "") for name, meaningful in SYSTEM_FIELDS.items()
    }
    own = {name: value for name, value in details.items() if name in SYSTEM_FIELDS}
    return {**description, **stated, **own, **chosen}


def describe_measurement(job: Mapping[str, Any], details: Mapping[str, str]) -> dict[str, str]:
    """Return `measurements.json` of a run whose job is given."""
    model = job.get("model") or {}
    types = {str(spec.get("element_type")) for spec in model.get("inputs") or [] if spec.get("element_type")}
    files = model.get("files") or {}
    weights = files.get("weights") or files.get("graph")
    known = {
        "input_data_types": ", ".join(sorted(types)) or NOT_STATED,
        "retraining": NOT_STATED,
        "starting_weights_filename": PurePosixPath(str(weights)).name if weights else NOT_STATED,
        "weight_data_types": NOT_STATED,
        "weight_transformations": "none: run as the bundle holds it",
    }
    return {name: details.get(name, value) for name, value in known.items()}


def differing_facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return by what two records are not of one system: hardware, software, or what a run may use of them."""
    first, second = _identity(one), _identity(other)
    return [name for name, value in first.items() if value != second[name]]


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    environment = record["environment"]
    machine, limits = environment.get("machine") or {}, environment.get("limits") or {}
    return {
        "the processor": tuple(machine.get(name) for name in ("cpu_model", "cpu_count")),
        "the machine's memory": machine.get("memory_bytes"),
        "the accelerator": record.get("accelerator"),
        "the framework": (record["framework"]["name"], record["framework"]["version"]),
        "the runtime": (record.get("runtime"), record.get("isolation")),
        "the image": (record.get("image") or {}).get("config_digest"),
        "the Python environment": (environment.get("python_environment") or {}).get("lock_sha256"),
        "the threads": limits.get("threads"),
        "the CPUs": limits.get("cpus"),
        "the memory": limits.get("memory_bytes"),
    }


def _accelerators(gpus: list[dict[str, Any]], record: Mapping[str, Any]) -> dict[str, Any]:
    if record.get("accelerator") != "gpu" or not gpus:
        names = [name for name in SYSTEM_FIELDS if name.startswith("accelerator_") and SYSTEM_FIELDS[name]]
        return {**dict.fromkeys(names, _NO_ACCELERATOR), "accelerators_per_node": "0"}
    first = gpus[0]
    return {
        "accelerators_per_node": len(gpus),
        "accelerator_model_name": first.get("name"),
        "accelerator_memory_capacity": _gibibytes(first.get("memory_bytes")),
        "accelerator_frequency": f"{first['max_sm_mhz']} MHz" if first.get("max_sm_mhz") else None,
    }


def _software(record: Mapping[str, Any]) -> str:
    environment = record["environment"]
    machine, engine, image = environment.get("machine") or {}, environment.get("engine"), record.get("image")
    parts = [f"Python {(environment.get('worker') or {}).get('python') or machine.get('python', '')}"]
    if engine:
        parts.append(f"{engine['kind']} {engine['version']}")
    if image:
        parts.append(f"image {image['ref']} {image['config_digest'] or ''}".strip())
    drivers = {gpu.get("driver") for gpu in machine.get("gpus") or [] if gpu.get("driver")}
    return "; ".join([*parts, *(f"NVIDIA driver {driver}" for driver in sorted(drivers))])


def _caches(caches: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"L{cache['level']} {cache['type']} {cache['size_bytes'] >> 10} KiB"
        for cache in caches
        if cache.get("size_bytes")
    )


def _gibibytes(size_bytes: int | None) -> str | None:
    return f"{size_bytes / (1 << 30):.1f} GiB" if size_bytes else None


def _megahertz(khz: int | None) -> str | None:
    return f"{khz / 1000:.0f} MHz" if khz else None
