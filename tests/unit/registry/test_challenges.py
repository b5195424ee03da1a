"""Headers of registries that are parsed: challenges, and who is known to take blobs in one piece."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbundle.registry.auth import parse_challenges
from mlbundle.registry.upload import wants_monolithic


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("Basic", {"basic": {}}),
        ('Basic realm="a, b"', {"basic": {"realm": "a, b"}}),
        (
            'Bearer realm="https://x/t",service="reg",scope="repository:a:pull,push"',
            {"bearer": {"realm": "https://x/t", "service": "reg", "scope": "repository:a:pull,push"}},
        ),
        ('BASIC realm=x, bearer Realm = "y\\"z"', {"basic": {"realm": "x"}, "bearer": {"realm": 'y"z'}}),
        ('Negotiate, Basic realm="x"', {"negotiate": {}, "basic": {"realm": "x"}}),
        ('Bearer realm="one", Bearer realm="two"', {"bearer": {"realm": "one"}}),
        ('Bearer realm="never ends', {"bearer": {}}),
    ],
)
def test_challenges(text: str, expected: dict[str, dict[str, str]]) -> None:
    found = parse_challenges(text)
    assert {name: found.get(name) for name in expected} == expected


@given(st.text(alphabet='aB=",\\ \t\x00é', max_size=200))
def test_no_challenge_is_too_strange(text: str) -> None:
    assert all(name == name.lower() for name in parse_challenges(text))


@pytest.mark.parametrize("text", ["," * 100_000, '"' * 100_000, "a=" * 50_000, 'a="' * 50_000, " " * 100_000])
def test_no_challenge_takes_long(text: str) -> None:
    begun = time.process_time()
    parse_challenges("Bearer " + text)
    parse_challenges(text + "x")
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("ghcr.io", True),
        ("gcr.io", True),
        ("eu.gcr.io", True),
        ("europe-docker.pkg.dev", True),
        ("1234.dkr.ecr.eu-west-1.amazonaws.com", True),
        ("public.ecr.aws", True),
        ("localhost:5000", False),
        ("registry-1.docker.io", False),
        ("ghcr.io.example.org", False),
    ],
)
def test_registries_that_take_blobs_in_one_piece(host: str, expected: bool) -> None:
    assert wants_monolithic(host) is expected
