"""Docker's settings and credential helpers, read and written."""

from __future__ import annotations

import base64
import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from mlbundle.errors import MlbundleError, RegistryDenied, ToolMissing, UsageError
from mlbundle.registry import credentials
from mlbundle.registry.credentials import Credentials, erase, find, store

SECRET = "p:ass wörd"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return tmp_path / "docker/config.json"


def write(config: Path, document: Any) -> None:
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps(document))


def auth(user: str = "ada", password: str = SECRET) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_nothing_is_known_without_settings(config: Path) -> None:
    assert find("ghcr.io") is None
    assert not erase("ghcr.io")


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("ghcr.io", "ghcr.io"),
        ("https://ghcr.io", "ghcr.io"),
        ("https://ghcr.io/v2/", "ghcr.io"),
        ("localhost:5000", "localhost:5000"),
        ("https://index.docker.io/v1/", "docker.io"),
    ],
)
def test_keys_that_mean_a_host(config: Path, key: str, host: str) -> None:
    write(config, {"auths": {"other.io": auth("eve"), key: auth()}})
    assert find(host) == Credentials("ada", SECRET)
    assert find("localhost") is None


def test_an_identity_token(config: Path) -> None:
    write(config, {"auths": {"ghcr.io": {**auth("ada", ""), "identitytoken": "t"}}})
    assert find("ghcr.io") == Credentials("ada", "", "t")


@pytest.mark.parametrize(
    "entry", [None, {}, [], {"auth": 5}, {"auth": "%%%"}, {"auth": "/w=="}, {"auth": ""}]
)
def test_entries_that_are_none(config: Path, entry: Any) -> None:
    write(config, {"auths": {"ghcr.io": entry}})
    assert find("ghcr.io") is None


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff"])
def test_settings_that_are_none(config: Path, text: str) -> None:
    write(config, {})
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        find("ghcr.io")
    assert caught.value.where == str(config)
    with pytest.raises(UsageError):
        store("ghcr.io", "ada", SECRET)
    assert config.read_bytes() == text.encode("latin-1")


def test_what_is_kept_is_found_and_the_rest_stays(config: Path) -> None:
    write(
        config, {"HttpHeaders": {"X": "y"}, "auths": {"https://ghcr.io/v1/": auth("old"), "other.io": auth()}}
    )
    config.chmod(0o644)
    assert store("ghcr.io", "ada", SECRET) == str(config)
    assert find("ghcr.io") == Credentials("ada", SECRET)
    document = json.loads(config.read_text())
    assert document["HttpHeaders"] == {"X": "y"}
    assert list(document["auths"]) == ["other.io", "ghcr.io"]
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert erase("ghcr.io")
    assert find("ghcr.io") is None
    assert find("other.io") is not None


def test_docker_hub_has_its_own_key(config: Path) -> None:
    store("docker.io", "ada", SECRET)
    assert list(json.loads(config.read_text())["auths"]) == ["https://index.docker.io/v1/"]
    assert find("docker.io") == Credentials("ada", SECRET)


def test_a_linked_file_stays_linked(config: Path, tmp_path: Path) -> None:
    write(config, {})
    config.rename(tmp_path / "real.json")
    config.symlink_to(tmp_path / "real.json")
    store("ghcr.io", "ada", SECRET)
    assert config.is_symlink()
    assert "ghcr.io" in (tmp_path / "real.json").read_text()


def test_logins_at_once_lose_nothing(config: Path) -> None:
    hosts = [f"host{n}.io" for n in range(8)]
    threads = [threading.Thread(target=store, args=(host, "ada", SECRET)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(find(host) for host in hosts)


def test_secrets_are_not_shown() -> None:
    shown = repr(Credentials("ada", SECRET, "identity"))
    assert SECRET not in shown
    assert "identity" not in shown


HELPER = """\
#!/bin/sh
cat > "$0.$1"
case "$1" in
get) {get} ;;
esac
"""


@pytest.fixture
def helper(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a helper of this test that answers `get` by a line of shell; returns its path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(get: str, settings: dict[str, Any] | None = None) -> Path:
        path = folder / "docker-credential-fake"
        path.write_text(HELPER.format(get=get))
        path.chmod(0o755)
        write(config, settings or {"credsStore": "fake"})
        return path

    return install


def test_a_helper_is_asked(helper: Any) -> None:
    path = helper(f"""echo '{{"ServerURL":"x","Username":"ada","Secret":"{SECRET}"}}'""")
    assert find("ghcr.io") == Credentials("ada", SECRET)
    assert Path(f"{path}.get").read_text() == "ghcr.io"
    find("docker.io")
    assert Path(f"{path}.get").read_text() == "https://index.docker.io/v1/"


def test_a_helper_for_one_host_alone(helper: Any) -> None:
    helper("""echo '{"Username":"<token>","Secret":"t"}'""", {"credHelpers": {"ghcr.io": "fake"}})
    assert find("ghcr.io") == Credentials("", "", "t")
    assert find("other.io") is None


def test_a_helper_that_knows_nothing(helper: Any) -> None:
    helper("echo 'credentials not found in native keychain'; exit 1")
    assert find("ghcr.io") is None


@pytest.mark.parametrize("get", [f"echo '{SECRET}'; exit 1", f"echo '{SECRET}'", "echo '{\"Username\":1}'"])
def test_a_helper_that_fails_is_not_quoted(helper: Any, get: str) -> None:
    helper(get)
    with pytest.raises(RegistryDenied) as caught:
        find("ghcr.io")
    assert SECRET not in json.dumps(caught.value.to_document(), ensure_ascii=False)


def test_a_helper_that_hangs(helper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    helper("exec sleep 300")
    monkeypatch.setattr(credentials, "_HELPER_TIMEOUT_S", 0.2)
    with pytest.raises(RegistryDenied, match="did not answer"):
        find("ghcr.io")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("missing", ToolMissing), ("../fake", UsageError), ("a b", UsageError), (5, UsageError)],
)
def test_helpers_that_are_none(config: Path, name: Any, kind: type[MlbundleError]) -> None:
    write(config, {"credsStore": name})
    with pytest.raises(kind) as caught:
        find("ghcr.io")
    assert caught.value.hint


def test_a_helper_keeps_and_forgets(helper: Any, config: Path) -> None:
    path = helper("""echo '{"Username":"ada","Secret":"x"}'""")
    assert store("ghcr.io", "ada", SECRET) == "docker-credential-fake"
    kept = json.loads(Path(f"{path}.store").read_text())
    assert kept == {"ServerURL": "ghcr.io", "Username": "ada", "Secret": SECRET}
    assert SECRET not in config.read_text()
    assert erase("ghcr.io")
    assert Path(f"{path}.erase").read_text() == "ghcr.io"
