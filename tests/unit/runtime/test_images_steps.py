"""What is said while an image is built, and that builds on one engine leave each other's stages alone."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_wheels import tiny_wheel

from mlbundle.config import Settings
from mlbundle.errors import ImageBuildFailed
from mlbundle.resources import resource_folder
from mlbundle.runtime import image_build, wheelhouse
from mlbundle.runtime.image_build import BuiltImage, build_image, plan_build
from mlbundle.runtime.image_steps import step_words, wheels_words
from mlbundle.runtime.images import built_in_framework
from mlbundle.runtime.lock import LockedImage, read_images_lock, record_image

MADE, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
WHEELS = wheels_words(15, 290_000_000)


def test_every_step_of_the_recipe_has_words_of_its_own() -> None:
    recipe = (resource_folder("containers") / "Dockerfile").read_text().replace("\\\n", " ")
    steps = [line for line in recipe.splitlines() if re.match(r"(?:FROM|COPY|RUN) ", line)]
    said = [step_words(f"Step {number}/9 : {line}", WHEELS) for number, line in enumerate(steps)]
    assert "installing 15 wheels (290 MB)" in said
    assert not [words for words in said if words is not None and words.startswith("Step ")]
    assert len([words for words in said if words is None]) == sum(line.startswith("FROM ") for line in steps)
    assert wheels_words(1, 0) == "1 wheel (0 MB)"


@given(st.text())
def test_other_lines_say_nothing(line: str) -> None:
    assert line.startswith("Step ") or step_words(line, WHEELS) is None


class Engine:
    """An engine that builds what it is told to have built: nobody can make the real one lose a stage in time."""

    def __init__(self, *builds: list[dict[str, Any]]) -> None:
        self.api = self
        self.timeout = 60
        self.contexts: list[dict[str, bytes]] = []
        self.removed: list[str] = []
        self.tags: dict[str, str] = {}
        self._builds = iter(builds)

    def inspect_image(self, name: str) -> dict[str, object]:
        identifier = self.tags.get(name, name if name in {MADE, OTHER} else None)
        if identifier is None and name != "base:1":
            raise docker.errors.ImageNotFound(name)
        tags = [tag for tag, target in self.tags.items() if target == identifier]
        return {"Architecture": "amd64", "Id": identifier or "sha256:base", "Size": 5, "RepoTags": tags}

    def create_host_config(self, **options: object) -> dict[str, object]:
        return options

    def create_container(self, *arguments: object, **options: object) -> dict[str, str]:
        return {"Id": "c"}

    def start(self, container: str) -> None: ...

    def wait(self, container: str, timeout: float) -> dict[str, int]:
        return {"StatusCode": 0}

    def logs(self, container: str, **options: object) -> bytes:
        return b'[3, 11, "glibc 2.36"]'

    def remove_container(self, container: str, **options: object) -> None: ...

    def images(self, **options: object) -> list[dict[str, str]]:
        return [{"Id": f"sha256:{letter * 64}"} for letter in "123"]

    def remove_image(self, identifier: str) -> None:
        self.removed.append(identifier)

    def tag(self, identifier: str, repository: str, tag: str, *, force: bool) -> None:
        self.tags[f"{repository}:{tag}"] = identifier

    def build(self, *, fileobj: io.IOBase, **options: object) -> Iterator[dict[str, Any]]:
        with tarfile.open(fileobj=fileobj) as context:  # type: ignore[call-overload]
            members = [(m.name, context.extractfile(m)) for m in context]
            self.contexts.append({name: stream.read() for name, stream in members if stream})
        yield from next(self._builds)

    def close(self) -> None: ...


LOST = [{"error": "No such image: sha256:0123"}]
BUILT: list[dict[str, Any]] = [{"aux": {"ID": MADE}}]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "data", tmp_path / "cache", tmp_path / "config")


def build(
    engine: Engine, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[BuiltImage, list[str]]:
    monkeypatch.setattr(image_build, "engine_client", lambda _timeout_s: engine)
    framework = built_in_framework("onnxruntime")
    for name, version in wheelhouse.pinned(plan_build(framework, "cpu", "amd64").recipe.lock):
        tiny_wheel(tmp_path, name, version)
    heard: list[str] = []
    options: dict[str, Any] = {"base_image": "base:1", "wheelhouse": tmp_path, "report": heard.append}
    return build_image(framework, "cpu", "amd64", settings, **options), heard


def test_a_stage_that_somebody_removed_is_built_again_once(settings, tmp_path, monkeypatch) -> None:
    made, heard = build(Engine(LOST, BUILT), settings, tmp_path, monkeypatch)
    assert made.config_digest == MADE
    assert any("building again" in line for line in heard)
    with pytest.raises(ImageBuildFailed, match="No such image"):
        build(Engine(LOST, LOST, BUILT), settings, tmp_path, monkeypatch)
    with pytest.raises(ImageBuildFailed, match="returned a non-zero code"):
        build(Engine([{"error": "returned a non-zero code: 1"}], BUILT), settings, tmp_path, monkeypatch)


def test_each_build_has_a_stage_of_wheels_of_its_own(settings, tmp_path, monkeypatch) -> None:
    engine = Engine(BUILT, BUILT)
    for _ in range(2):
        build(engine, settings, tmp_path, monkeypatch)
    first, second = engine.contexts
    assert {name for name in first if first[name] != second[name]} == {"wheels/build-id"}


def test_stages_that_others_made_are_left_to_them(settings, tmp_path, monkeypatch) -> None:
    said = [
        f" ---> {'1' * 12}\n",
        " ---> Using cache\n",
        f" ---> {'2' * 12}\n",
        " ---> Running in 0123456789ab\n",
    ]
    engine = Engine([*({"stream": line} for line in said), *BUILT])
    build(engine, settings, tmp_path, monkeypatch)
    # That of 3 is a stage of a build that this one has not seen.
    assert engine.removed == ["sha256:" + "1" * 64]


def test_an_image_that_loses_its_name_and_its_pin_is_told_and_keeps_a_name(
    settings, tmp_path, monkeypatch
) -> None:
    engine = Engine(BUILT)
    plan = plan_build(built_in_framework("onnxruntime"), "cpu", "amd64")
    engine.tags[plan.ref] = OTHER
    record_image(settings.images_lock, plan.key, LockedImage(plan.ref, OTHER))
    made, heard = build(engine, settings, tmp_path, monkeypatch)
    kept = f"{plan.ref}-{'b' * 12}"
    assert engine.tags == {plan.ref: MADE, kept: OTHER}
    assert f"replaces the pin {OTHER}" in heard
    assert any(kept in line for line in heard)
    assert (made.replaces, made.kept_as) == (OTHER, kept)
    assert read_images_lock(settings.images_lock)[plan.key].config_digest == MADE


def test_the_same_image_again_replaces_nothing(settings, tmp_path, monkeypatch) -> None:
    engine = Engine(BUILT, BUILT)
    build(engine, settings, tmp_path, monkeypatch)
    made, heard = build(engine, settings, tmp_path, monkeypatch)
    assert (made.replaces, made.kept_as, len(engine.tags)) == (None, None, 1)
    assert not [line for line in heard if "replaces" in line or "kept" in line]


def test_another_name_is_enough_to_be_kept(settings, tmp_path, monkeypatch) -> None:
    engine = Engine(BUILT)
    plan = plan_build(built_in_framework("onnxruntime"), "cpu", "amd64")
    engine.tags |= {plan.ref: OTHER, "mine:1": OTHER}
    made, _ = build(engine, settings, tmp_path, monkeypatch)
    assert made.kept_as is None
    assert engine.tags == {plan.ref: MADE, "mine:1": OTHER}
