"""The limits of control groups, of both versions, from inside and outside of a container."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from made_up import tree

from mlbundle.wire.cgroups import cgroup_limits
from mlbundle.wire.variables import LONGEST_VALUE, MOST_VARIABLES, telling


def test_version_2_takes_the_least_of_a_group_and_those_above(tmp_path) -> None:
    top = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": "0::/service/worker",
        f"{top}/service/memory.max": 1 << 30,
        f"{top}/service/cpu.max": "150000 100000",
        f"{top}/service/worker/memory.max": "max",
        f"{top}/service/worker/cpu.max": "max 100000",
        f"{top}/service/worker/cpuset.cpus.effective": "0-3",
        f"{top}/service/worker/pids.max": 64,
        f"{top}/service/worker/cpu.stat": "usage_usec 1\nnr_periods 9\nnr_throttled 4",
    }
    assert cgroup_limits(tree(tmp_path, files)) == {
        "version": "v2",
        "memory_bytes": 1 << 30,
        "cpu_quota": 1.5,
        "cpus": "0-3",
        "pids": 64,
        "throttled": 4,
    }


def test_version_1_in_a_container_where_the_path_is_the_host_s(tmp_path) -> None:
    top, path = "sys/fs/cgroup", "/docker/0123"
    files = {
        "proc/self/cgroup": f"4:memory:{path}\n3:cpu,cpuacct:{path}\n2:cpuset:{path}\n1:name=systemd:{path}\n0::{path}",
        f"{top}/memory/memory.limit_in_bytes": 512 << 20,
        f"{top}/cpu,cpuacct/cpu.cfs_quota_us": 200000,
        f"{top}/cpu,cpuacct/cpu.cfs_period_us": 100000,
        f"{top}/cpuset/cpuset.cpus": "1",
    }
    found = cgroup_limits(tree(tmp_path, files))
    assert (found["version"], found["memory_bytes"], found["cpu_quota"]) == ("v1", 512 << 20, 2.0)
    assert (found["cpus"], found["pids"]) == ("1", None)


def test_version_1_without_limits(tmp_path) -> None:
    files = {
        "proc/self/cgroup": "2:memory:/\n1:cpu:/",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
    }
    found = cgroup_limits(tree(tmp_path, files))
    assert (found["memory_bytes"], found["cpu_quota"]) == (None, None)


def test_a_machine_without_control_groups(tmp_path) -> None:
    assert set(cgroup_limits(tmp_path).values()) == {None}


def test_a_path_does_not_lead_out_of_the_mount(tmp_path) -> None:
    files = {
        "proc/self/cgroup": "0::/../../../outside",
        "sys/fs/cgroup/memory.max": 4096,
        "outside/memory.max": 1,
    }
    assert cgroup_limits(tree(tmp_path, files))["memory_bytes"] == 4096


def test_only_variables_that_matter_are_told_and_no_secrets() -> None:
    given_ = {
        "OMP_NUM_THREADS": "4",
        "TORCH_HUB_TOKEN": "hunter2",
        "NVIDIA_API_KEY": "hunter2",
        "CUDA_VISIBLE_DEVICES": "GPU-8f2c1b3e-1234-5678-9abc-def012345678",
        "LD_PRELOAD": "/home/eve/lib.so:/home/evelyn/x.so",
        "XLA_FLAGS": "--a",
        "PATH": "/bin",
        "HOME": "/home/eve",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
    }
    assert telling(given_, "/home/eve") == {
        "CUDA_VISIBLE_DEVICES": "GPU-...",
        "LD_PRELOAD": "~/lib.so:/home/evelyn/x.so",
        "OMP_NUM_THREADS": "4",
        "XLA_FLAGS": "--a",
    }


@given(st.dictionaries(st.one_of(st.text(), st.text().map("OMP_{}".format)), st.text(max_size=3000)))
def test_whatever_is_claimed_is_cut_to_size(claimed) -> None:
    told = telling(claimed, "/")
    assert len(told) <= MOST_VARIABLES
    assert all(len(value) <= LONGEST_VALUE for value in told.values())
    assert telling(told, "/") == told
