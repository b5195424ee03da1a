"""Names of architectures and accelerators, and facts about this machine.

Everything is read below a `root` folder ("/" unless a test makes one up). What can't be read is None: a machine
that tells little is no error.
"""

from __future__ import annotations

from mlbundle.platforms.cpu import CpuFacts, Topology, cpu_facts, topology
from mlbundle.platforms.machine import MachineFacts, free_bytes, machine_facts, usable_cpus
from mlbundle.platforms.names import (
    ACCELERATORS,
    ARCHITECTURES,
    check_accelerator,
    normalise_architecture,
    this_architecture,
)
from mlbundle.platforms.state import MachineState, machine_state
from mlbundle.platforms.sysfs import cpu_list, cpu_ranges

__all__ = [
    "ACCELERATORS",
    "ARCHITECTURES",
    "CpuFacts",
    "MachineFacts",
    "MachineState",
    "Topology",
    "check_accelerator",
    "cpu_facts",
    "cpu_list",
    "cpu_ranges",
    "free_bytes",
    "machine_facts",
    "machine_state",
    "normalise_architecture",
    "this_architecture",
    "topology",
    "usable_cpus",
]
