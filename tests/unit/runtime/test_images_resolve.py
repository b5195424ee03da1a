"""Which image a run gets, against an engine that holds exactly the images of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import docker.errors
import pytest

from mlbundle.config import Settings
from mlbundle.errors import EngineUnavailable, ImageMismatch, ImageMissing, UsageError
from mlbundle.manifest.framework import FrameworkManifest, ImageChoice
from mlbundle.runtime.images import resolve_image
from mlbundle.runtime.lock import ImageKey, LockedImage, RegistryName, record_image

REF = "registry:5000/team/onnxruntime:1.2.3"
REPOSITORY = "registry:5000/team/onnxruntime"
CONFIG, MANIFEST, INDEX, OTHER = (f"sha256:{letter * 64}" for letter in "abcd")
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class FakeEngine:
    """Knows images by the names it was given."""

    def __init__(self, images: dict[str, dict[str, Any]]) -> None:
        self.api = self
        self._images = images

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self._images:
            raise docker.errors.ImageNotFound(f"no such image: {name}")
        return self._images[name]


def facts(
    identifier: str = CONFIG, *digests: str, architecture: str = "amd64", **more: Any
) -> dict[str, Any]:
    names = [f"{REPOSITORY}@{digest}" for digest in digests]
    return {"Id": identifier, "RepoDigests": names, "Architecture": architecture, "Size": 1, **more}


def framework(digest: str | None, build: str | None = None) -> FrameworkManifest:
    choice = ImageChoice(REF, digest, build)
    return FrameworkManifest("onnxruntime", "1.2.3", containers={"amd64": {"cpu": choice}})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "data", tmp_path / "cache", tmp_path / "config")


def test_a_config_digest_is_found_as_the_engines_id(settings: Settings) -> None:
    image = resolve_image(framework(CONFIG), "amd64", "cpu", settings, FakeEngine({CONFIG: facts()}))
    assert (image.image_id, image.config_digest) == (CONFIG, CONFIG)
    assert (image.manifest_digest, image.index_digest) == (None, None)
    assert (image.ref, image.pinned, image.source) == (REF, True, "manifest")


def test_a_manifest_digest_is_found_by_name_and_digest(settings: Settings) -> None:
    engine = FakeEngine({f"{REPOSITORY}@{MANIFEST}": facts(CONFIG, MANIFEST)})
    image = resolve_image(framework(MANIFEST), "x86_64", "cpu", settings, engine)
    assert (image.image_id, image.manifest_digest, image.index_digest) == (CONFIG, MANIFEST, None)


@pytest.mark.parametrize(
    ("media_type", "expected"), [(INDEX_TYPE, (None, INDEX)), (MANIFEST_TYPE, (INDEX, None))]
)
def test_an_engine_that_knows_the_kind_of_digest_is_believed(settings, media_type, expected) -> None:
    held = facts(INDEX, Descriptor={"mediaType": media_type, "digest": INDEX})
    image = resolve_image(framework(INDEX), "amd64", "cpu", settings, FakeEngine({INDEX: held}))
    assert (image.manifest_digest, image.index_digest) == expected


def test_another_image_under_the_pinned_name_is_a_mismatch(settings: Settings) -> None:
    engine = FakeEngine({REF: facts(OTHER, INDEX)})
    with pytest.raises(ImageMismatch) as failure:
        resolve_image(framework(CONFIG), "amd64", "cpu", settings, engine)
    assert failure.value.exit_code == 5
    assert CONFIG in (failure.value.where or "")
    assert OTHER in (failure.value.where or "")
    assert failure.value.hint == f"docker pull {REPOSITORY}@{CONFIG}"


def test_an_engine_that_answers_with_another_image_is_not_believed(settings: Settings) -> None:
    engine = FakeEngine({f"{REPOSITORY}@{CONFIG}": facts(OTHER)})
    with pytest.raises(ImageMissing):
        resolve_image(framework(CONFIG), "amd64", "cpu", settings, engine)


def test_a_pinned_image_that_is_nowhere_says_how_to_get_it(settings: Settings) -> None:
    with pytest.raises(ImageMissing) as failure:
        resolve_image(framework(CONFIG), "amd64", "cpu", settings, FakeEngine({}))
    assert failure.value.hint == f"docker pull {REPOSITORY}@{CONFIG}"


def test_the_digest_of_the_manifest_beats_the_images_lock(settings: Settings) -> None:
    remember(settings, OTHER)
    engine = FakeEngine({CONFIG: facts(), OTHER: facts(OTHER)})
    assert resolve_image(framework(CONFIG), "amd64", "cpu", settings, engine).image_id == CONFIG


def remember(settings: Settings, digest: str) -> None:
    entry = LockedImage(REF, digest, "debian:bookworm", "e" * 64, "2026-11-20T14:25:03+00:00")
    record_image(settings.images_lock, ImageKey("onnxruntime", "1.2.3", "amd64", "cpu"), entry)


def test_without_a_digest_the_image_that_was_built_here_is_taken_whatever_its_tag_says_now(settings) -> None:
    remember(settings, CONFIG)
    engine = FakeEngine({CONFIG: facts(), REF: facts(OTHER)})
    image = resolve_image(framework(None, "containers/x"), "amd64", "cpu", settings, engine)
    assert (image.image_id, image.pinned, image.source) == (CONFIG, True, "images.lock")


def test_an_image_that_was_never_built_or_is_gone_names_the_command(settings: Settings) -> None:
    command = "mlbundle images build onnxruntime --arch amd64 --accelerator cpu"
    engine = FakeEngine({REF: facts(OTHER)})
    with pytest.raises(ImageMissing) as failure:
        resolve_image(framework(None, "containers/x"), "amd64", "cpu", settings, engine)
    assert failure.value.hint == command
    remember(settings, CONFIG)
    with pytest.raises(ImageMissing, match="no longer in the engine") as failure:
        resolve_image(framework(None, "containers/x"), "amd64", "cpu", settings, engine)
    assert failure.value.hint == command


def test_a_mere_tag_is_not_enough(settings: Settings) -> None:
    with pytest.raises(ImageMissing, match="not pinned by a digest"):
        resolve_image(framework(None), "amd64", "cpu", settings, FakeEngine({REF: facts()}))


def test_an_image_for_another_architecture_is_a_mismatch(settings: Settings) -> None:
    engine = FakeEngine({CONFIG: facts(architecture="arm64")})
    with pytest.raises(ImageMismatch, match="for arm64, not for amd64"):
        resolve_image(framework(CONFIG), "amd64", "cpu", settings, engine)


def test_nothing_that_fits_lists_what_exists(settings: Settings) -> None:
    with pytest.raises(ImageMissing) as failure:
        resolve_image(framework(CONFIG), "arm64", "cpu", settings, FakeEngine({}))
    assert failure.value.context == ("amd64/cpu",)
    with pytest.raises(UsageError):
        resolve_image(framework(CONFIG), "amd64", "tpu", settings, FakeEngine({}))


def test_an_engine_that_fails_is_not_a_missing_image(settings: Settings) -> None:
    class Failing(FakeEngine):
        def inspect_image(self, name: str) -> dict[str, Any]:
            raise docker.errors.APIError("server error")

    with pytest.raises(EngineUnavailable):
        resolve_image(framework(CONFIG), "amd64", "cpu", settings, Failing({}))


IMAGE_KEY = ImageKey("onnxruntime", "1.2.3", "amd64", "cpu")
PLATFORM = "--arch amd64 --accelerator cpu"
KNOWN = RegistryName("elsewhere:5000/onnxruntime:1", MANIFEST)


def test_both_digests_of_a_locked_image_are_told(settings: Settings) -> None:
    record_image(settings.images_lock, IMAGE_KEY, LockedImage(REF, CONFIG, registry=(KNOWN,)))
    image = resolve_image(
        framework(None, "containers/x"), "amd64", "cpu", settings, FakeEngine({CONFIG: facts()})
    )
    assert (image.config_digest, image.manifest_digest, image.index_digest) == (CONFIG, MANIFEST, None)


def test_a_registrys_digest_survives_a_file_when_the_lock_remembers_it(settings: Settings) -> None:
    engine = FakeEngine({CONFIG: facts()})
    with pytest.raises(ImageMissing):
        resolve_image(framework(MANIFEST), "amd64", "cpu", settings, engine)
    record_image(settings.images_lock, IMAGE_KEY, LockedImage(REF, CONFIG, registry=(KNOWN,)))
    image = resolve_image(framework(MANIFEST), "amd64", "cpu", settings, engine)
    assert (image.image_id, image.manifest_digest, image.source) == (CONFIG, MANIFEST, "manifest")
    with pytest.raises(ImageMissing):
        resolve_image(framework(OTHER), "amd64", "cpu", settings, engine)


def test_an_engine_with_ids_of_its_own_is_asked_by_them_and_the_config_stays_the_pin(settings) -> None:
    record_image(settings.images_lock, IMAGE_KEY, LockedImage(REF, CONFIG, image_id=INDEX))
    image = resolve_image(
        framework(None, "containers/x"), "amd64", "cpu", settings, FakeEngine({INDEX: facts(INDEX)})
    )
    assert (image.image_id, image.config_digest) == (INDEX, CONFIG)


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        (
            LockedImage(REF, CONFIG, source="pulled", registry=(KNOWN,)),
            f"mlbundle images pull onnxruntime {PLATFORM} --from elsewhere:5000/onnxruntime@{MANIFEST}",
        ),
        (LockedImage(REF, CONFIG, source="loaded"), "load it again: mlbundle images load FILE"),
    ],
)
def test_an_image_that_is_gone_comes_back_the_way_it_came(settings, entry, hint) -> None:
    record_image(settings.images_lock, IMAGE_KEY, entry)
    with pytest.raises(ImageMissing) as failure:
        resolve_image(framework(None, "containers/x"), "amd64", "cpu", settings, FakeEngine({}))
    assert failure.value.hint == hint


def test_an_image_that_is_here_and_not_pinned_says_how_it_is(settings: Settings) -> None:
    parts = {"framework": "onnxruntime", "version": "1.2.3", "architecture": "amd64", "accelerator": "cpu"}
    labels = {f"io.mlbundle.{part}": value for part, value in parts.items()}
    for found, hint in ((labels, "images lock"), (labels | {"io.mlbundle.version": "9"}, "images build")):
        engine = FakeEngine({REF: facts(CONFIG, Config={"Labels": found})})
        with pytest.raises(ImageMissing) as failure:
            resolve_image(framework(None, "recipe"), "amd64", "cpu", settings, engine)
        assert hint in (failure.value.hint or "")
