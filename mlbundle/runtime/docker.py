"""The `docker` runtime: the worker in a pinned image with nothing but what it needs.

No network, read-only root, no capabilities, no new privileges, an unprivileged user, limits on memory, processes
and CPUs, no writable mount: results come back over the attached streams. Closing our side ends the container.
"""

from __future__ import annotations

import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EngineDied, EnvironmentLacks, ImageMissing, WorkerHung
from mlbundle.platforms import usable_cpus
from mlbundle.runtime.base import ExitState, Launch, Place, WorkerLog, worker_variables
from mlbundle.wire import presence
from mlbundle.wire.job import ASSETS_IN_CONTAINER, WORKER_IN_CONTAINER

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from mlbundle.runtime.images import ResolvedImage

RUN_LABEL = "io.mlbundle.run"
USER = "65534:65534"
SCRATCH = "/tmp"  # noqa: S108 - the container's own tmpfs
_STREAM_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_READ_BYTES = 1 << 16
_KILLED = 137
_GONE = (404, 409)  # it is not there, or is being removed
_REMOVE_TIMEOUT_S = 10.0
_PROMISE_TIMEOUT_S = 1.0
_ALL_GPUS = {"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}


class DockerRuntime:
    """Runs the worker in a container of one resolved image."""

    name = "docker"

    def __init__(
        self, client: Any, image: ResolvedImage, *, platform: str | None = None, gpus: bool = False
    ) -> None:
        """`platform` is that of the image where it is not the engine's own; `gpus` asks for all of the machine's."""
        self._client = client
        self._image = image
        self._platform = platform
        self._gpus = gpus
        self.left = False

    def container_arguments(self, launch: Launch) -> dict[str, Any]:
        """Return exactly what is asked of the engine; `--dry-run` prints it."""
        limits = launch.limits
        cpus: dict[str, Any] = (
            {"cpuset_cpus": ",".join(str(cpu) for cpu in limits.cpus)}
            if limits.cpus
            else {"nano_cpus": len(usable_cpus()) * 1_000_000_000}
        )
        return {
            "image": self._image.image_id,
            "entrypoint": ["python3"],
            "command": ["-s", WORKER_IN_CONTAINER],
            "user": USER,
            "working_dir": SCRATCH,
            "hostname": "worker",
            # What an image asks to be run beside the worker is not run.
            "healthcheck": {"test": ["NONE"]},
            "environment": {"HOME": SCRATCH, "LC_ALL": "C.UTF-8", **worker_variables(limits)},
            "labels": {RUN_LABEL: launch.run_id},
            **({"platform": self._platform} if self._platform is not None else {}),
            "host_config": {
                "network_mode": "none",
                "read_only": True,
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "tmpfs": {SCRATCH: f"rw,nosuid,nodev,mode=1777,size={limits.scratch_bytes}"},
                "mem_limit": limits.memory_bytes,
                "memswap_limit": limits.memory_bytes,
                "pids_limit": limits.pids,
                "auto_remove": True,
                "log_config": {"Type": "none"},
                "ipc_mode": "private",
                "mounts": [
                    _read_only(launch.assets, ASSETS_IN_CONTAINER),
                    _read_only(launch.worker.path, WORKER_IN_CONTAINER),
                ],
                **cpus,
                **({"device_requests": [dict(_ALL_GPUS)]} if self._gpus else {}),
            },
        }

    def start(self, launch: Launch) -> DockerConnection:
        """Create the container, attach to its streams, start it; nothing is left behind on failure."""
        import docker.errors
        import requests.exceptions

        arguments = self.container_arguments(launch)
        host_config = self._client.api.create_host_config(**arguments.pop("host_config"))
        log = WorkerLog(launch.log)
        try:
            created = self._client.api.create_container(
                **arguments, host_config=host_config, stdin_open=True, detach=False, network_disabled=True
            )
            return DockerConnection(self._client, created["Id"], log, self._note_left)
        except docker.errors.ImageNotFound as error:
            self._give_up(launch.run_id, log)
            raise ImageMissing(
                f"the image {self._image.ref} went away after the run was planned",
                where=self._image.image_id,
                hint="build or pull it again; `mlbundle images list` shows which images are here",
            ) from error
        except docker.errors.APIError as error:
            self._give_up(launch.run_id, log)
            raise EnvironmentLacks(
                f"the engine refused to start the worker: {error.explanation or error}",
                hint="see `mlbundle doctor` and the engine's log",
            ) from error
        except (OSError, requests.exceptions.RequestException) as error:
            self._give_up(launch.run_id, log)
            raise EngineDied(
                f"the container engine went away while the worker was started: {error}",
                hint="restart the engine",
            ) from error
        except BaseException:
            self._give_up(launch.run_id, log)
            raise

    def paths(self, launch: Launch) -> dict[str, str]:
        """Return the fixed places inside the container."""
        return {"assets": ASSETS_IN_CONTAINER, "scratch": SCRATCH}

    def describe(self) -> dict[str, Any]:
        """Return what separates the worker from this machine."""
        level = "pinned" if self._image.pinned else "unpinned"
        return {
            "isolation": level,
            "summary": (
                f"container, {level} image; no network, read-only root, no capabilities, "
                f"user {USER}, memory, process and CPU limits"
            ),
            "network": False,
        }

    def _give_up(self, run_id: str, log: WorkerLog) -> None:
        """Remove the container by its label: an interrupted call may have made one whose id never reached us."""
        log.close()
        try:
            remove_left_containers(self._client, run_id)
        except Exception:  # noqa: BLE001 - what is going on already says why
            self._note_left()

    def _note_left(self) -> None:
        self.left = True


class DockerConnection:
    """A started container and the stream that carries its stdin, stdout and stderr."""

    def __init__(
        self, client: Any, container: str, log: WorkerLog, not_removed: Callable[[], None] = lambda: None
    ) -> None:
        """`not_removed` is called when the engine did not take the container away at the end."""
        self._client = client
        self._container = container
        self._log = log
        self._not_removed = not_removed
        self._promised_at: float | None = None
        self._buffer = bytearray()
        self._stdout = bytearray()
        self._ended = False
        self._exit: ExitState | None = None
        self._socket = _attach(client, container)
        # Waiting starts before the container does: it removes itself at its end, status and all.
        self._waiter = threading.Thread(target=self._await_exit, name="container-wait", daemon=True)
        self._waiter.start()
        client.api.start(container)

    def send(self, data: bytes, timeout_s: float) -> None:
        """Write to the container's stdin; one that is gone is noticed by `read`. Raises WorkerHung."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(data)
            self._promise()
        except TimeoutError:
            raise WorkerHung(
                f"the worker did not read its job for {timeout_s:.0f} s",
                hint="see worker.log in the run's folder",
            ) from None
        except (BrokenPipeError, ConnectionError):
            return

    def read(self, timeout_s: float) -> bytes | None:
        """Return bytes of stdout; stderr goes to the log on the way. Raises EngineDied.

        Whoever reads is there, which the worker is told on the way.
        """
        deadline = time.monotonic() + timeout_s
        if self._promised_at is not None and time.monotonic() - self._promised_at > presence.EVERY_S:
            with suppress(OSError):  # reading finds out what it is
                self._promise()
        while not self._stdout and not self._ended:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._receive(left_s)
        data = bytes(self._stdout)
        self._stdout.clear()
        return data

    def scratch_bytes(self) -> int | None:
        """Return None: the tmpfs has a size of its own."""
        return None

    def place(self) -> Place | None:
        """Ask the engine for the container's first process; it may be one of another machine, or gone by now."""
        try:
            pid = int(self._client.api.inspect_container(self._container)["State"]["Pid"])
        except Exception:  # noqa: BLE001 - nothing depends on it; whether the engine is there, `read` finds out
            return None
        return Place(pid, self._container) if pid > 0 else None

    def tail(self) -> list[str]:
        """Return the last lines of stderr."""
        return self._log.tail()

    def wait(self, timeout_s: float) -> ExitState:
        """Wait for the container's exit status."""
        self._waiter.join(timeout_s)
        if self._exit is None:
            return ExitState(None, "the container closed its streams and did not end")
        return self._exit

    def stop(self) -> None:
        """Close our side, kill and remove the container, and wait until it is gone."""
        import docker.errors

        with suppress(OSError):
            self._socket.close()
        try:
            self._client.api.remove_container(self._container, force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code not in _GONE:
                self._not_removed()
        except Exception:  # noqa: BLE001 - the engine is: what is going on already says so
            self._not_removed()
        self._waiter.join(_REMOVE_TIMEOUT_S)
        self._log.close()

    def _promise(self) -> None:
        self._socket.settimeout(_PROMISE_TIMEOUT_S)
        self._socket.sendall(presence.promise())
        self._promised_at = time.monotonic()

    def _receive(self, timeout_s: float) -> None:
        self._socket.settimeout(max(0.01, timeout_s))
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended = True
            self._check_engine()
            return
        self._buffer += data
        self._demultiplex()

    def _demultiplex(self) -> None:
        while len(self._buffer) >= _STREAM_HEADER.size:
            stream, size = _STREAM_HEADER.unpack_from(self._buffer)
            end = _STREAM_HEADER.size + size
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_STREAM_HEADER.size : end])
            del self._buffer[:end]
            if stream == _STDOUT:
                self._stdout += payload
            elif stream == _STDERR:
                self._log.write(payload)

    def _check_engine(self) -> None:
        import requests.exceptions

        try:
            self._client.api.ping()
        except (OSError, requests.exceptions.RequestException) as error:
            raise EngineDied(
                "the container engine went away in the middle of the run",
                context=self.tail(),
                hint="restart the engine and run again; the run's folder keeps what was seen",
            ) from error

    def _await_exit(self) -> None:
        try:
            answer = self._client.api.wait(self._container, condition="removed", timeout=None)
        except Exception as error:  # noqa: BLE001 - the engine is gone; `read` says so in its own words
            self._exit = ExitState(None, str(error))
            return
        status = int(answer["StatusCode"])
        self._exit = ExitState(status, self._killed_by() if status == _KILLED else "")

    def _killed_by(self) -> str:
        """Return why the container was killed, as far as the engine remembers: it is removed by now."""
        with suppress(Exception):
            told = self._client.api.events(
                since=1,
                until=time.time(),
                filters={"container": self._container, "event": "oom"},
                decode=True,
            )
            if any(event.get("Action") == "oom" for event in told):
                return "it was out of memory"
        return ""


def _read_only(source: Path, target: str) -> dict[str, Any]:
    # As a mount, not as "source:target:ro": a path may hold a colon.
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}


def _attach(client: Any, container: str) -> socket.socket:
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    attached = client.api.attach_socket(container, params=params)
    # The SDK hands out a file-like object around the socket on some transports and the socket on others.
    connection: socket.socket = getattr(attached, "_sock", attached)
    return connection


def remove_left_containers(client: Any, run_id: str) -> int:
    """Remove the containers labelled with a run whose owner is gone; returns how many there were."""
    found = client.api.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})
    for container in found:
        with suppress(Exception):
            client.api.remove_container(container["Id"], force=True)
    return len(found)
