"""Framework manifests: images, digests, locks, architectures and their aliases."""

from __future__ import annotations

import pytest
from manifest_samples import HEX, framework_problems

from mlbundle.manifest.framework import ImageChoice
from mlbundle.manifest.load import parse_framework

HEAD = "name: torch\nversion: 2.1.0\n"
DIGEST = f"sha256:{HEX}"
LOCK = "containers/torch/cpu/requirements-amd64.lock"
PYTHON = f"python: {{arm64: {{cpu: {LOCK}}}}}\n"


def image(yaml: str) -> list[str]:
    return [p.split(" ", 1)[1] for p in framework_problems(f"{HEAD}containers: {{amd64: {{cpu: {yaml}}}}}\n")]


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        (f"{{image: 'a/b:1', digest: '{DIGEST}', build: containers/b}}", []),
        (f"'a/b:1@{DIGEST}'", []),
        (f"{{image: 'a/b@{DIGEST}', digest: '{DIGEST}'}}", []),
        (f"{{image: 'a/b@{DIGEST}', digest: 'sha256:{'0' * 64}'}}", ["error /containers/amd64/cpu/digest: the image reference names another digest"]),
        ("'a/b:1'", ["warning /containers/amd64/cpu: the image 'a/b:1' is unpinned"]),
        ("{image: 'a/b:1'}", ["warning /containers/amd64/cpu/image: the image 'a/b:1' is unpinned"]),
        ("{image: 'a/b:1', digest: 'sha256:…'}", ["warning /containers/amd64/cpu/digest: the digest 'sha256:…' is shortened; the image counts as unpinned"]),
        (f"{{image: 'a/b:1', digest: {HEX}}}", [f"error /containers/amd64/cpu/digest: '{HEX[:60]}…' is no digest"]),
        ("'a/b@sha256:12'", ["error /containers/amd64/cpu: 'sha256:12' is no digest"]),
        ("'--privileged'", ["error /containers/amd64/cpu: '--privileged' is no image reference", "warning /containers/amd64/cpu: the image '--privileged' is unpinned"]),
        (f"{{digest: '{DIGEST}'}}", ["error /containers/amd64/cpu: the key 'image' is missing"]),
        (f"{{image: 'a/b@{DIGEST}', build: ../x}}", ["error /containers/amd64/cpu/build: '../x' is not allowed as a path: it leaves its folder with '..'"]),
        ("[a]", ["error /containers/amd64/cpu: cpu can't be a list of 1"]),
    ],
)  # fmt: skip
def test_images(yaml: str, expected: list[str]) -> None:
    assert image(yaml) == expected


def test_digests_are_taken_out_of_the_reference() -> None:
    text = f"{HEAD}containers: {{x86_64: {{cpu: 'a/b:1@{DIGEST}', gpu: {{image: c, digest: 'sha256:…'}}}}}}\n"
    framework = parse_framework(text.encode(), "f").require()
    assert framework.containers == {
        "amd64": {"cpu": ImageChoice("a/b:1", DIGEST), "gpu": ImageChoice("c")},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD, ["1:1 error : one of the keys 'containers' or 'python' is missing"]),
        (HEAD + "containers: {}\n", ["3:13 error /containers: containers is empty"]),
        (HEAD + "python: {arm64: {cpu: mine.lock}}\n", ["3:23 warning /python/arm64/cpu: the lock 'mine.lock' is none of those that come with mlbundle"]),
        (HEAD + f"python: {{amd46: {{cpu: {LOCK}}}}}\n", ["3:10 error /python/amd46: 'amd46' is no architecture"]),
        (HEAD + f"python: {{amd64: {{cup: {LOCK}}}}}\n", ["3:18 error /python/amd64/cup: 'cup' is no accelerator"]),
        (HEAD + "python: {amd64: {cpu: /a.lock}}\n", ["3:23 error /python/amd64/cpu: '/a.lock' is not allowed as a path: it is absolute"]),
        (HEAD + f"python: {{amd64: {{cpu: {LOCK}}}, x86_64: {{gpu: {LOCK}}}}}\n", ["3:70 error /python/x86_64: 'x86_64' and 'amd64' are the same architecture"]),
        ("name: torch\nversion: 2.1.0rc1+cu121\n" + PYTHON, []),
        ("name: torch\nversion: 2.1\n" + PYTHON, ["2:10 warning /version: '2.1' has fewer than three parts"]),
        ("name: torch\nversion: 1.0.0-left.right\n" + PYTHON, ["2:10 error /version: '1.0.0-left.right' is no version"]),
        ("name: torch\nversion: newest\n" + PYTHON, ["2:10 error /version: 'newest' is no version"]),
        ("name: torch\nversion: 1.0.0\npyhton: {arm64: {cpu: a}}\n", ["1:1 error : one of the keys 'containers' or 'python' is missing", "3:1 error /pyhton: unknown key 'pyhton'"]),
    ],
)  # fmt: skip
def test_mistakes(text: str, expected: list[str]) -> None:
    assert framework_problems(text) == expected


def test_near_misses_of_architectures() -> None:
    (problem,) = parse_framework((HEAD + f"python: {{amd46: {{cpu: {LOCK}}}}}\n").encode(), "f").problems
    assert problem.hint == "did you mean 'amd64'?"
