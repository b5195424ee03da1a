"""References to registries: what is taken, what is refused, and names of models as repositories."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.errors import UsageError
from mlbundle.registry.reference import (
    RegistryReference,
    looks_like_registry,
    parse,
    parse_host,
    repository_name,
)

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci://ghcr.io/lab/mini:1.0.0", ("ghcr.io", "lab/mini", "1.0.0", None)),
        ("ghcr.io/lab/mini", ("ghcr.io", "lab/mini", None, None)),
        ("localhost:5000/mini:v1@" + DIGEST, ("localhost:5000", "mini", "v1", DIGEST)),
        ("localhost/mini@" + DIGEST, ("localhost", "mini", None, DIGEST)),
        ("oci://host/a-_".replace("-_", "--b__c"), ("host", "a--b__c", None, None)),
        ("[::1]:5000/mini", ("[::1]:5000", "mini", None, None)),
        ("GHCR.io/mini", ("ghcr.io", "mini", None, None)),
        ("docker.io/mini:1", ("docker.io", "library/mini", "1", None)),
        ("index.docker.io/lab/mini", ("docker.io", "lab/mini", None, None)),
    ],
)
def test_forms(text: str, expected: tuple[str, str, str | None, str | None]) -> None:
    reference = parse(text)
    assert (reference.host, reference.repository, reference.tag, reference.digest) == expected
    assert parse(str(reference)) == reference


@pytest.mark.parametrize(
    "text",
    [
        "oci://", "oci://host", "oci://host/", "oci:///mini", "host/Mini", "host/a//b", "host/a..b", "host/a___b",
        "host/-a", "host/a:", "host/a:.b", "host/a:" + "x" * 129, "host/a@", "host/a@sha256:abc", "host/a@md5:abc",
        "host/a@" + DIGEST.upper(), "host:0/a", "host:99999/a", "host:x/a", "-host/a", "ho st/a", "user@host/a",
        "host/a?b", "host/a#b", "host/" + "a" * 256, "host/a\n", "host/a:b\n", "höst/a", "host/á", "host/../a",
        "[::1/a", "http://host/a",
    ],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.hint


@given(st.text(alphabet="aA0._-:/@[]% é\n", max_size=40))
def test_whatever_is_typed_is_a_reference_or_a_usage_error(text: str) -> None:
    try:
        reference = parse(text)
    except UsageError:
        return
    assert parse(str(reference)) == reference
    assert not set(f"{reference.host}{reference.repository}") & set("%@ \n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ghcr.io/lab/mini", True),
        ("localhost/mini", True),
        ("localhost:5000/mini:1", True),
        ("oci://anything", True),
        ("lab/mini", False),
        ("mini.mlb", False),
        ("./mini.mlb", False),
        ("../mini", False),
        ("/data/mini.mlb", False),
        ("models/mini.mlb", False),
        ("~/mini", False),
        ("C:/mini", False),
        ("mini:1.0.0", False),
        ("", False),
    ],
)
def test_what_looks_like_a_registry(text: str, expected: bool) -> None:
    assert looks_like_registry(text) is expected


def test_docker_hub_answers_elsewhere() -> None:
    assert parse("docker.io/lab/mini").api_host == "registry-1.docker.io"
    assert parse("ghcr.io/lab/mini").api_host == "ghcr.io"


def test_another_tag_or_digest() -> None:
    reference = RegistryReference("host", "mini", "1")
    assert str(reference.with_(digest=DIGEST)) == f"oci://host/mini@{DIGEST}"
    assert reference.with_(tag="2").manifest == "2"
    assert reference.with_(tag="2", digest=DIGEST).manifest == DIGEST
    with pytest.raises(UsageError):
        reference.with_(tag="a b")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ResNet50", "resnet50"),
        ("digits-cnn", "digits-cnn"),
        ("MobileNet v1 1.0 (224)", "mobilenet-v1-1.0--224"),
        ("a__b...c-_d", "a__b-c-d"),
        ("_x_", "x"),
        ("Größe/2", "gr--e-2"),
    ],
)
def test_names_of_models_as_repositories(name: str, expected: str) -> None:
    assert repository_name(name) == expected


@given(st.text(min_size=1, max_size=128))
def test_every_name_gives_a_legal_repository_or_a_usage_error(name: str) -> None:
    try:
        repository = repository_name(name)
    except UsageError:
        assert not re.search("[a-z0-9]", name.lower())
        return
    assert parse(f"oci://host/{repository}").repository == repository


def test_hosts() -> None:
    assert parse_host("Registry-1.docker.io") == "docker.io"
    with pytest.raises(UsageError):
        parse_host("host/path")
