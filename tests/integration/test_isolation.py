"""Every barrier around a worker in a container, tried from inside by code of a bundle.

One run probes them all: each probe says what it saw or what it could do, each test asserts one barrier, so that a
barrier that falls is a test that fails.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import Outcome, command_line, make_bundle

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("in_image_home")]

DOCKER = ("--runtime", "docker")
QUICK = ("--duration", "50ms", "--warmup", "10ms", "--no-accuracy", "--json")
SCRATCH_BYTES = 32 << 20
MEMORY_BYTES = 384 << 20
PIDS = 64
NAMESPACES = ("ipc", "mnt", "net", "pid", "uts")

PROBES = """
import ctypes, json, os, socket, stat, sys, time
if globals().get("told"):
    return data
globals()["told"] = True
libc = ctypes.CDLL(None, use_errno=True)
seen, done = {}, {}

def look(name, action):
    try:
        seen[name] = action()
    except OSError as error:
        seen[name] = repr(error)

def attempt(name, action):
    try:
        done[name] = [True, repr(action())[:300]]
    except BaseException as error:
        done[name] = [False, f"{type(error).__name__}: {error}"[:300]]

def call(function, *arguments):
    if getattr(libc, function)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

def write(path):
    with open(path, "w") as stream:
        stream.write("planted")

def lines(path):
    return open(path).read().splitlines()

def writable():
    found = []
    for folder, folders, _ in os.walk("/"):
        if folder == "/":
            folders.remove("proc")
        if os.access(folder, os.W_OK):
            found.append(folder)
    return found

assets = env["assets"]
look("interfaces", lambda: os.listdir("/sys/class/net"))
look("routes", lambda: lines("/proc/net/route")[1:])
attempt("connect", lambda: socket.create_connection(("192.0.2.1", 80), timeout=2))
attempt("connect to the engine's bridge", lambda: socket.create_connection(("172.17.0.1", 80), timeout=2))
attempt("resolve a name", lambda: socket.getaddrinfo("example.com", 80))
attempt("connect to this machine's loopback", lambda: socket.create_connection(("127.0.0.1", PORT), timeout=2))
attempt("send a datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)))
attempt("a raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("a packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
look("writable folders", writable)
for path in ("/planted", "/etc/passwd", "/usr/planted", "/var/tmp/planted", "/dev/planted", "/run/planted"):
    attempt("write " + path, lambda: write(path))
attempt("write the assets", lambda: write(assets + "/planted"))
attempt("change an asset", lambda: open(assets + "/model.onnx", "r+b"))
attempt("change an asset's mode", lambda: os.chmod(assets + "/model.onnx", 0o777))
attempt("remove an asset", lambda: os.unlink(assets + "/model.onnx"))
attempt("change the worker", lambda: open("/mlbundle/worker.pyz", "r+b"))
attempt("remount the root", lambda: call("mount", b"none", b"/", None, 32, None))
attempt("mount", lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None))
attempt("unmount the assets", lambda: call("umount2", assets.encode(), 2))
attempt("a namespace of its own", lambda: call("unshare", 0x10000000))
attempt("change the root", lambda: os.chroot("/tmp"))
attempt("make a device", lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
attempt("become root", lambda: os.setuid(0))
attempt("become root's group", lambda: os.setgid(0))
attempt("join a group", lambda: os.setgroups([0]))
attempt("rename the host", lambda: socket.sethostname("planted"))
attempt("set the clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
attempt("raise its priority", lambda: os.nice(-5))
attempt("load a program into the kernel", lambda: call("syscall", 321, 0, None, 0))
attempt("trace a process of the host", lambda: call("ptrace", 16, HOST_PID, 0, 0))
attempt("signal a process of the host", lambda: os.kill(HOST_PID, 0))
attempt("read the kernel's memory", lambda: open("/proc/kcore", "rb").read(1) or 1 / 0)
for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches"):
    attempt("write " + path, lambda: write(path))
cgroup = "/sys/fs/cgroup/memory/memory.limit_in_bytes" if os.path.isdir("/sys/fs/cgroup/memory") else "/sys/fs/cgroup/memory.max"
attempt("raise its memory limit", lambda: write(cgroup))
look("status", lambda: dict(line.split(":\\t", 1) for line in lines("/proc/self/status") if ":\\t" in line))
look("mounts", lambda: [line.split() for line in lines("/proc/self/mounts")])
look("devices", lambda: os.listdir("/dev"))
look("host paths", lambda: [path for path in HOST_PATHS if os.path.exists(path)])
look("hostname", socket.gethostname)
look("processes", lambda: [int(name) for name in os.listdir("/proc") if name.isdigit()])
look("environment", lambda: dict(os.environ))
look("tmp", lambda: [os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize, os.statvfs("/tmp").f_flag])
look("namespaces", lambda: {name: os.readlink("/proc/self/ns/" + name) for name in NAMESPACES})
look("shared memory", lambda: lines("/proc/sysvipc/shm")[1:])
look("groups", os.getgroups)
print("PROBES " + json.dumps({"seen": seen, "done": done}), file=sys.stderr, flush=True)
return data
"""


@dataclass(frozen=True)
class Told:
    """What the probes saw, and which attempts succeeded, with what came of them."""

    seen: dict[str, Any]
    done: dict[str, tuple[bool, str]]
    run_id: str
    assets: Path


@pytest.fixture(scope="module")
def told(image_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The report of one run in a container."""
    folder = tmp_path_factory.mktemp("isolation")
    secret = folder / "secret-of-the-host"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        constants = {
            "PORT": server.getsockname()[1],
            "HOST_PID": os.getpid(),
            "HOST_PATHS": [
                str(secret),
                str(image_home),
                str(Path(__file__)),
                "/var/run/docker.sock",
                "/run/docker.sock",
            ],
            "NAMESPACES": NAMESPACES,
        }
        code = "".join(f"{name} = {value!r}\n" for name, value in constants.items()) + PROBES
        bundle = make_bundle(folder / "probes", preprocess=code)
        limits = {
            "MLBUNDLE_HOME": str(image_home),
            "MLBUNDLE_SCRATCH_BYTES": str(SCRATCH_BYTES),
            "SECRET_OF_THE_HOST": "secret",
        }
        outcome = run(bundle, "--memory", str(MEMORY_BYTES), env=limits)
        assert outcome.status == 0, outcome.stderr + outcome.stdout
    record = outcome.document()
    log = (image_home / "data" / "runs" / record["run_id"] / "worker.log").read_text()
    (line,) = [line for line in log.splitlines() if line.startswith("PROBES ")]
    report = json.loads(line.removeprefix("PROBES "))
    return Told(
        report["seen"], {n: (d[0], d[1]) for n, d in report["done"].items()}, record["run_id"], bundle
    )


def run(bundle: Path, *arguments: str, env: dict[str, str] | None = None) -> Outcome:
    done = subprocess.run(
        command_line("run", bundle, *DOCKER, *QUICK, *arguments),
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


# What is tried -> words of one of which the refusal has to have some.
REFUSED = {
    "connect": "unreachable",
    "connect to the engine's bridge": "unreachable",
    "resolve a name": "resolution|not known",
    "connect to this machine's loopback": "refused",
    "send a datagram": "unreachable",
    "a raw socket": "not permitted",
    "a packet socket": "not permitted",
    "write /planted": "Read-only|denied",
    "write /etc/passwd": "Read-only|denied",
    "write /usr/planted": "Read-only|denied",
    "write /var/tmp/planted": "Read-only",
    "write /dev/planted": "denied",
    "write /run/planted": "Read-only|denied",
    "write the assets": "Read-only|denied",
    "change an asset": "Read-only|denied",
    "change an asset's mode": "Read-only|not permitted",
    "remove an asset": "Read-only|denied",
    "change the worker": "Read-only|denied",
    "remount the root": "not permitted",
    "mount": "not permitted",
    "unmount the assets": "not permitted",
    "a namespace of its own": "not permitted",
    "change the root": "not permitted",
    "make a device": "not permitted",
    "become root": "not permitted",
    "become root's group": "not permitted",
    "join a group": "not permitted",
    "rename the host": "not permitted",
    "set the clock": "not permitted",
    "raise its priority": "not permitted|denied",
    "load a program into the kernel": "not permitted",
    "trace a process of the host": "No such process|not permitted",
    "signal a process of the host": "No such process",
    "read the kernel's memory": "denied|ZeroDivision|not permitted|No such file",
    "write /proc/sys/kernel/hostname": "Read-only|denied",
    "write /proc/sysrq-trigger": "Read-only|denied|No such file",
    "write /proc/sys/vm/drop_caches": "Read-only|denied",
    "raise its memory limit": "Read-only|denied",
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_it_can_not(told, what) -> None:
    succeeded, answer = told.done[what]
    assert not succeeded, answer
    assert re.search(REFUSED[what], answer), answer


def test_every_attempt_is_looked_at(told) -> None:
    assert set(told.done) == set(REFUSED)


def test_there_is_no_network_but_its_own_loopback(told) -> None:
    assert told.seen["interfaces"] == ["lo"]
    assert told.seen["routes"] == []


def test_no_capability_is_left(told) -> None:
    status = told.seen["status"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_the_user_is_nobody_and_in_no_group_but_its_own(told) -> None:
    status = told.seen["status"]
    assert set(status["Uid"].split()) == {"65534"}
    assert set(status["Gid"].split()) == {"65534"}
    assert set(told.seen["groups"]) <= {65534}


def test_only_memory_that_goes_with_the_container_can_be_written(told) -> None:
    roots = {"/tmp", "/dev/shm", "/dev/mqueue"}
    written = {p for p in told.seen["writable folders"] if not p.startswith(tuple(r + "/" for r in roots))}
    assert "/tmp" in written
    assert written <= roots
    kinds = {mount[1]: mount[2] for mount in told.seen["mounts"]}
    assert {kinds[root] for root in written} <= {"tmpfs", "mqueue"}


def test_the_scratch_folder_is_limited_and_starts_nothing_privileged(told) -> None:
    size_bytes, flags = told.seen["tmp"]
    assert size_bytes == SCRATCH_BYTES
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV


def test_nothing_is_mounted_but_what_is_meant(told) -> None:
    mounts = {mount[1]: mount for mount in told.seen["mounts"]}
    ours = {"/", "/tmp", "/mlbundle/assets", "/mlbundle/worker.pyz"}
    engines = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}
    kernels = ("/proc", "/sys", "/dev")
    others = {path for path in mounts if not any(path == k or path.startswith(k + "/") for k in kernels)}
    assert ours <= set(mounts)
    assert others <= ours | engines
    for path in others - {"/tmp"}:
        assert "ro" in mounts[path][3].split(","), mounts[path]


def test_nothing_of_the_host_is_seen(told) -> None:
    assert told.seen["host paths"] == []
    assert "SECRET_OF_THE_HOST" not in told.seen["environment"]
    assert "secret" not in told.seen["environment"].values()
    assert told.seen["hostname"] == "worker"
    assert told.seen["shared memory"] == []
    # The supervisor and its child; this test's own process has another number than both.
    assert len(told.seen["processes"]) <= 3
    assert 1 in told.seen["processes"]


def test_its_namespaces_are_its_own(told) -> None:
    for name in NAMESPACES:
        assert told.seen["namespaces"][name] != str(Path(f"/proc/self/ns/{name}").readlink()), name


def test_there_are_no_devices_but_the_harmless(told) -> None:
    harmless = {"console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm"}
    harmless |= {"stderr", "stdin", "stdout", "tty", "urandom", "zero"}
    assert set(told.seen["devices"]) <= harmless


def test_nothing_was_planted_and_no_container_is_left(told, engine) -> None:
    assert not (told.assets / "planted").exists()
    assert not Path("/planted").exists()
    assert engine.api.containers(all=True, filters={"label": f"io.mlbundle.run={told.run_id}"}) == []


def failed(bundle: Path, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    return run(bundle, *arguments, env=env).error(4, "worker-failed")


GREEDY = "x = [bytearray(1 << 20) for _ in range(4096)]"


def test_a_pass_over_the_memory_limit_is_told_with_the_limit(tmp_path) -> None:
    error = failed(make_bundle(tmp_path / "b", preprocess=GREEDY), "--memory", "256MiB")
    assert (error["fault"], error["where"]) == ("environment", "out-of-memory")
    assert "256 MiB" in error["message"]
    assert "--memory" in error["hint"]


def test_a_kill_that_is_not_for_memory_is_told_from_one_that_is(tmp_path) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    error = failed(make_bundle(tmp_path / "b", preprocess=code), "--memory", "256MiB")
    assert error["where"] == "measuring-process-killed"
    assert "not for want of memory" in error["message"]


def test_a_whole_container_without_memory_is_told_with_the_limit(tmp_path) -> None:
    # Several small processes beside a supervisor that volunteers: the kernel takes the container's first process.
    code = (
        "import os\n"
        "with open('/proc/1/oom_score_adj', 'w') as stream:\n"
        "    stream.write('1000')\n"
        "os.fork(), os.fork()\n" + GREEDY
    )
    outcome = run(make_bundle(tmp_path / "b", preprocess=code), "--memory", "128MiB")
    error = outcome.error(4, "worker-crashed")
    assert "it was out of memory" in error["message"], error
    assert "128 MiB" in error["message"], error


def test_a_fork_bomb_ends_at_the_limit(tmp_path) -> None:
    code = (
        "import os, time\n"
        "number = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(60)\n"
        "            os._exit(0)\n"
        "        number += 1\n"
        "except BlockingIOError:\n"
        "    raise RuntimeError(f'stopped after {number}')"
    )
    error = failed(make_bundle(tmp_path / "b", preprocess=code), env={"MLBUNDLE_PIDS": str(PIDS)})
    stopped = re.search(r"stopped after (\d+)", error["message"])
    assert stopped is not None, error
    assert 0 < int(stopped[1]) < PIDS


def test_a_crash_says_which_signal_and_where_in_python(tmp_path) -> None:
    code = "import ctypes\nctypes.string_at(0)"
    error = failed(make_bundle(tmp_path / "b", preprocess=code))
    assert "SIGSEGV" in error["message"]
    assert any("preprocess of the manifest" in line for line in error["context"]), error["context"]
