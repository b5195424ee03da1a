"""Commands in several processes on one data folder, killed at random moments; the driver of `test_kills.py`.

    kill_rounds.py FOLDER REGISTRY SEED KILLS

A round: new content for the bundles; commands in four processes, most of them killed somewhere in their usual time;
then all that still run are killed at once. Now everything that has a name must keep what the name promises. Then each
command that was killed is tried again and must succeed. Prints what happened as one JSON document.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import forked
from store_checks import check_store, hidden, write_model

from mlbundle.bundle.pack import preview
from mlbundle.bundle.verify import verify
from mlbundle.runs.packing import collect
from mlbundle.store.bundles import BundleStore
from mlbundle.store.library import Library

PROCESSES = 4
OFTEN_KILLED = ("pack", "add", "push", "pull", "gc")
KILLS_A_ROUND = 20
TRACES = ("half bundles", "partial blobs")
"""What a kill in the middle leaves: kills that leave nothing at all come too early or too late to show anything."""

WISHES = {"pack": 5, "add": 5, "push": 5, "pull": 5, "gc": 6, "rm": 3, "sign": 3}
SETTLED = 10
"""Bundles that nobody packs anew; they come into the library and leave it again."""

SIGNED = "settled9"


def add_text(folder: Path, version: str) -> None:
    """Add a group of small files that compress well: the first is new in each version."""
    for number in range(40):
        words = random.Random(f"{number} {version if number == 0 else ''}")
        line = " ".join(f"{words.randrange(1000):03d}" for _ in range(2000))
        (folder / "data" / f"text{number:02d}.txt").write_text((line + "\n") * 25)


@dataclass
class Task:
    """A command; `label` is the bundle of the library it is about, `repository` where it pushes to."""

    kind: str
    arguments: list[str]
    label: str = ""
    repository: str = ""
    tried: int = 0


@dataclass
class Running:
    task: Task
    child: forked.Child
    kill_at_s: float | None


@dataclass
class Driver:
    """The state of the whole: what must be in the library, what runs, what was killed."""

    folder: Path
    host: str
    seed: int
    kills: int
    round: int = 0
    started: int = 0
    known: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    usual_s: dict[str, float] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    broken: list[Task] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.sources, self.out = self.folder / "sources", self.folder / "out"
        self.key = self.folder / "key"
        self.data = Path(os.environ["MLBUNDLE_HOME"]) / "data"
        self.library = Library(self.data)
        self.began_s = time.monotonic()
        for folder in (self.sources, self.out, self.folder / "told"):
            folder.mkdir()

    # What there is

    def prepare(self) -> None:
        """Make the bundles that stay as they are, send them to the registry, and try each command once."""
        self._do("keygen", [str(self.key), "--no-passphrase"])
        for number in range(SETTLED):
            name = f"settled{number}"
            self._write(name, "1.0.0", 4 << 20)
            path = self._pack(name)
            self._do("push", [str(path), f"{self.host}/settled/{name}:1", "--plain-http"])
        self._renew()
        for name in ("plain", "grouped"):
            self._pack(name)
        self._do("add", [str(self._file("settled0"))])
        self._do("pull", [f"{self.host}/settled/settled1:1", "--plain-http"])
        self._do("sign", [str(self._file("plain")), "--key", str(self.key)])
        self._do("sign", [str(self._file(SIGNED)), "--key", str(self.key)])
        self._do("rm", ["settled0:1.0.0"])
        self._do("rm", ["settled1:1.0.0"])
        self._do("gc", ["--partials"])
        self.kept.clear()
        self.finished.clear()

    def _write(self, name: str, version: str, size_bytes: int) -> None:
        folder = self.sources / name
        weights = random.Random(f"{self.seed} {name} {version}").randbytes(size_bytes)
        write_model(folder, name, version, weights)
        if name == "grouped":
            add_text(folder, version)
        self.known[f"{name}:{version}"] = preview(collect(folder)).manifest_digest

    def _renew(self) -> None:
        """New content for what is packed again and again."""
        for name in ("plain", "grouped"):
            self._write(name, f"1.0.{self.round}", 3 << 20)

    def _pack(self, name: str) -> Path:
        path = self._file(name)
        self._do("pack", [str(self.sources / name), "-o", str(path), "--force"])
        return path

    def _file(self, name: str) -> Path:
        return self.out / f"{name}.mlb"

    # Commands

    def _do(self, kind: str, arguments: list[str]) -> None:
        """Run one command to its end, alone; it must succeed."""
        self._start(Task(kind, arguments), kill=False)
        self._run_until(lambda: not self.running)

    def _choose(self) -> Task | None:
        """Return a command that makes sense now, with what is short of kills first."""
        wishes = {
            kind: wish * (3 if self.killed[kind] < self._least(kind) * self._share() else 1)
            for kind, wish in WISHES.items()
        }
        kind = self.chance.choices(list(wishes), list(wishes.values()))[0]
        name = self.chance.choice(("plain", "grouped"))
        if kind == "pack":
            return Task(kind, [str(self.sources / name), "-o", str(self._file(name)), "--force"])
        if kind == "push":
            # A repository of its own, so that everything is sent.
            name = self.chance.choice(("plain", "grouped", SIGNED))
            repository = f"{name}/n{len(self.repositories)}"
            self.repositories.append(repository)
            target = f"{self.host}/{repository}:t"
            return Task(
                kind, [str(self._file(name)), target, "--plain-http", "--force"], repository=repository
            )
        if kind == "gc":
            return Task(kind, ["--partials"] if self.chance.random() < 0.3 else [])
        if kind == "sign":
            return Task(kind, [str(self._file("plain")), "--key", str(self.key)])
        if kind == "rm":
            return self._choose_removal()
        return self._choose_arrival(kind)

    def _share(self) -> float:
        return min(1.0, (sum(self.killed.values()) + KILLS_A_ROUND) / self.kills)

    @property
    def latest_s(self) -> float:
        """When it must be over, on any machine."""
        return 120.0 + 2 * self.kills

    def _least(self, kind: str) -> int:
        """How many kills of a kind there must be: an eighth of all."""
        return self.kills // 8 if kind in OFTEN_KILLED else 0

    def _choose_removal(self) -> Task | None:
        busy = {task.label for task in self._open_tasks()}
        packed_now = {f"{name}:1.0.{self.round - back}" for name in ("plain", "grouped") for back in (0, 1)}
        labels = sorted(self.kept - busy - packed_now)
        if not labels:
            return None
        label = self.chance.choice(labels)
        self.kept.discard(label)
        return Task("rm", [label], label=label)

    def _choose_arrival(self, kind: str) -> Task | None:
        if kind == "add" and self.chance.random() < 0.3:
            return Task(kind, [str(self._file(self.chance.choice(("plain", "grouped"))))])
        leaving = {task.label for task in self._open_tasks() if task.kind == "rm"}
        labels = [f"settled{n}:1.0.0" for n in range(SETTLED)]
        labels = [label for label in labels if label not in leaving and label not in self.kept]
        if not labels:
            return self._choose_removal()
        label = self.chance.choice(labels)
        name = label.partition(":")[0]
        if kind == "add":
            return Task(kind, [str(self._file(name))], label=label)
        return Task(kind, [f"{self.host}/settled/{name}:1", "--plain-http"], label=label)

    def _open_tasks(self) -> list[Task]:
        return [*(item.task for item in self.running), *self.broken]

    def _start(self, task: Task, *, kill: bool) -> None:
        self.started += 1
        output = self.folder / "told" / f"{self.started}.out"
        child = forked.start([task.kind, *task.arguments, "--json"], output)
        usual_s = self.usual_s.get(task.kind, 0.05)
        self.running.append(
            Running(task, child, child.started_s + self.chance.random() * usual_s if kill else None)
        )

    def _run_until(self, done: object) -> None:
        assert callable(done)
        while not done():
            self._wait()

    def _wait(self) -> None:
        """Wait for the next end or the next kill, whichever comes first."""
        now_s = time.monotonic()
        if now_s - self.began_s > self.latest_s:
            fail(f"{self.latest_s} s are over; running: {[item.task for item in self.running]}")
        times = [item.kill_at_s for item in self.running if item.kill_at_s is not None]
        poll = select.poll()
        for item in self.running:
            poll.register(item.child.pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poll.poll(max(0.0, min([*times, now_s + 1.0]) - now_s) * 1000)}
        now_s = time.monotonic()
        for item in list(self.running):
            if item.child.pidfd not in ended and item.kill_at_s is not None and item.kill_at_s <= now_s:
                item.child.kill()
                ended.add(item.child.pidfd)
        for item in [item for item in self.running if item.child.pidfd in ended]:
            self.running.remove(item)
            self._ended(item)

    def _ended(self, item: Running) -> None:
        task, taken_s = item.task, time.monotonic() - item.child.started_s
        status = item.child.wait()
        if status == -signal.SIGKILL:
            self.killed[task.kind] += 1
            task.tried += 1
            self.broken.append(task)
            return
        # A removal that was killed may have been done.
        gone = task.kind == "rm" and task.tried and '"reference-not-found"' in item.child.stdout()
        # A file that another process packed anew meanwhile is not signed as it was: the user is asked to try again.
        if task.kind == "sign" and '"source-changed"' in item.child.stdout():
            self.broken.append(task)
            return
        if status and not gone:
            fail(
                f"{task} tried {task.tried} times ended with {status}:\n{item.child.stdout()}{item.child.stderr()}"
            )
        self.finished[task.kind] += 1
        if item.kill_at_s is None:
            self.usual_s[task.kind] = 0.7 * self.usual_s.get(task.kind, taken_s) + 0.3 * taken_s
        if task.kind in {"add", "pull"}:
            document = json.loads(item.child.stdout())
            label = f"{document['name']}:{document['version']}"
            if document["manifest_digest"] != self.known[label]:
                fail(f"{label} came into the library with another digest")
            self.kept.add(label)

    # Rounds

    def enough(self) -> bool:
        """Whether enough was killed, and in the middle of something; what leaves no trace for long is given up."""
        kills = sum(self.killed.values())
        return kills >= self.kills and all(
            [
                *(self.killed[kind] >= self._least(kind) for kind in OFTEN_KILLED),
                *(self.seen[f"{trace} after kills"] > 0 or kills >= 4 * self.kills for trace in TRACES),
            ]
        )

    def play(self) -> None:
        """One round."""
        self.round += 1
        self._renew()
        for number in range(0, SETTLED, 2):
            # Work for collectors: unpacked, as for a run, and then in nobody's library.
            BundleStore(self.data).materialise(self._file(f"settled{number}"))
        goal = sum(self.killed.values()) + KILLS_A_ROUND
        while sum(self.killed.values()) + PROCESSES < goal:
            while len(self.running) < PROCESSES:
                if self.broken and self.chance.random() < 0.2:
                    self._start(self.broken.pop(0), kill=False)
                elif (task := self._choose()) is not None:
                    self._start(task, kill=True)
            self._wait()
        for item in self.running:
            item.child.kill()
        while self.running:
            self._ended(self.running.pop())
        self.check()
        self._try_again()
        for name in ("plain", "grouped"):
            self._pack(name)

    def _try_again(self) -> None:
        while self.broken or self.running:
            while self.broken and len(self.running) < PROCESSES:
                self._start(self.broken.pop(0), kill=False)
            self._wait()

    # What must hold

    def check(self) -> None:
        """Every name keeps its promise, whatever was killed. Nobody works meanwhile."""
        self.seen["checks"] += 1
        entries = check_store(self.data)
        for entry in entries:
            if entry.manifest_digest != self.known[entry.label]:
                fail(f"{entry.label} is another bundle")
        lost = self.kept - {entry.label for entry in entries}
        if lost:
            fail(f"the library has lost {lost}")
        self._check_files()
        self.seen["partial blobs after kills"] += len(list(self.library.store.partial.iterdir()))
        self.seen["half removed trees after kills"] += len(hidden(self.data / "bundles"))
        self.seen["half entries after kills"] += len(hidden(self.library.folder))
        for task in self.broken:
            if task.repository:
                self.check_tag(task.repository, may_lack=True)

    def _check_files(self) -> None:
        for path in self.out.iterdir():
            if path.name.startswith(".") and path.name.endswith(".partial"):
                self.seen["half bundles after kills"] += 1
                continue
            name = path.name.removesuffix(".mlb")
            right = {digest for label, digest in self.known.items() if label.partition(":")[0] == name}
            if verify(path).manifest_digest not in right:
                fail(f"{path} is no bundle that was packed")
            self.seen["bundle files verified"] += 1

    def check_tag(self, repository: str, *, may_lack: bool) -> None:
        """A tag that is there names a whole bundle."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("GET", f"/v2/{repository}/tags/list")
        answer = connection.getresponse()
        document = json.loads(answer.read())
        connection.close()
        # Without a referrers API what is attached has a tag of its own.
        tags = [tag for tag in document.get("tags") or () if not tag.startswith("sha256-")]
        if not tags:
            self.seen["pushes without a tag after kills"] += 1
            if not may_lack:
                fail(f"{repository} has no tag: {document}")
        for tag in tags:
            signed = (
                ["--require-signature", "--key", f"{self.key}.pub"] if repository.startswith(SIGNED) else []
            )
            self._do("verify", [f"oci://{self.host}/{repository}:{tag}", "--plain-http", *signed])
            self.seen["tags verified"] += 1

    def close(self) -> None:
        """The end: all that was pushed is there, and nothing is left over."""
        self.check()
        for repository in self.repositories:
            self.check_tag(repository, may_lack=False)
        self._do("gc", ["--partials"])
        entries, _ = self.library.scan()
        wanted = {key for entry in entries for key, _ in entry.blobs}
        left = {
            "blobs": {path.name for path in self.library.store.whole.iterdir()} - wanted,
            "partial blobs": {path.name for path in self.library.store.partial.iterdir()},
            "half bundles": hidden(self.out),
            "temporary files": hidden(self.data),
        }
        if any(left.values()):
            fail(f"left over: {left}")
        self.check()


def fail(message: str) -> None:
    sys.exit(message)


def main(folder: Path, host: str, seed: int, kills: int) -> None:
    forked.import_everything()
    driver = Driver(folder, host, seed, kills)
    driver.prepare()
    while not driver.enough():
        driver.play()
    driver.close()
    print(
        json.dumps({
            "seed": seed,
            "kills": sum(driver.killed.values()),
            "killed": dict(driver.killed),
            "finished": dict(driver.finished),
            "rounds": driver.round,
            "usual_ms": {kind: round(taken * 1000) for kind, taken in driver.usual_s.items()},
            "seen": dict(driver.seen),
            "seconds": round(time.monotonic() - driver.began_s, 1),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
