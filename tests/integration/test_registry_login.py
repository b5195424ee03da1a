"""`mlbundle login` and `logout` against a registry that wants a password."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from registry_fixture import PASSWORD, USER, RealRegistry, running_registry

from mlbundle.cli.login import command, logout_command
from mlbundle.errors import MlbundleError
from mlbundle.registry.credentials import Credentials, find


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    with running_registry(tmp_path_factory.mktemp("guarded"), with_password=True) as running:
        yield running


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return tmp_path / "docker/config.json"


def run(*arguments: str, typed: str = "") -> Any:
    return CliRunner().invoke(command, list(arguments), input=typed)


def test_login_keeps_what_is_right(guarded: RealRegistry, own_settings: Path) -> None:
    done = run(guarded.host, "-u", USER, "--password-stdin", "--plain-http", typed=f"{PASSWORD}\n")
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert f"logged in to {guarded.host}" in done.stderr
    assert PASSWORD not in done.output
    assert find(guarded.host) == Credentials(USER, PASSWORD)
    gone = CliRunner().invoke(logout_command, [guarded.host])
    assert gone.exit_code == 0
    assert find(guarded.host) is None
    assert json.loads(own_settings.read_text())["auths"] == {}


def test_login_does_not_keep_what_is_wrong(guarded: RealRegistry, own_settings: Path) -> None:
    done = run(guarded.host, "-u", USER, "--password-stdin", "--plain-http", typed="wrong\n")
    assert isinstance(done.exception, MlbundleError)
    assert (done.exception.reference, done.exception.exit_code) == ("registry-denied", 3)
    assert not own_settings.exists()


def test_login_says_when_nothing_was_checked(registry: RealRegistry) -> None:
    done = run(registry.host, "-u", USER, "--password-stdin", "--plain-http", typed="any\n")
    assert done.exit_code == 0
    assert "could not be checked" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        (["host.io"], ""),
        (["host.io", "--password-stdin"], "x\n"),
        (["host.io", "-u", "ada", "--password-stdin"], "\n"),
        (["host.io", "-u", "a:b", "--password-stdin"], "x\n"),
        (["ho st", "-u", "ada", "--password-stdin"], "x\n"),
    ],
)
def test_login_needs_all_it_needs(arguments: list[str], typed: str, own_settings: Path) -> None:
    done = run(*arguments, typed=typed)
    assert isinstance(done.exception, MlbundleError)
    assert done.exception.exit_code == 2
    assert not own_settings.exists()


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    modules = [
        "auth",
        "blobs",
        "client",
        "credentials",
        "documents",
        "reference",
        "referrers",
        "transfer",
        "transport",
        "upload",
        "web",
    ]
    lines = [f"import mlbundle.registry.{name}" for name in modules]
    program = "; ".join(["import sys", *lines, "import mlbundle.cli.login"])
    program += (
        "; print([m for m in ('urllib3', 'cryptography', 'docker', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
