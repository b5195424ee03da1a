"""Lists of packages, and the SBOM that is made of them."""

from __future__ import annotations

import contextlib
import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signing_samples import SUBJECT, A, blob_of

from mlbundle.errors import BundleCorrupt, MlbundleError, ToolMissing, UsageError
from mlbundle.signing.packages import Package, parse_dpkg_status, parse_lock, parse_metadata
from mlbundle.signing.referrers import parse_referrer
from mlbundle.signing.sbom import make_sbom, sbom_referrer
from mlbundle.signing.trust import check

pytest.importorskip("cyclonedx")
ROOT = Path(__file__).resolve().parents[3]
ONE, TWO = "1" * 64, "2" * 64
LOCK = f"""\
# a comment
--index-url https://example.org
Num_Py==2.4.6 \\
    --hash=sha256:{TWO} \\
    --hash=sha256:{ONE.upper()} \\
    --hash=sha512:{ONE}{ONE}
    # via x
colorama[x]==0.4.6 ; sys_platform == 'win32' --hash=sha256:{ONE}
torch==2.1.0+cpu --hash=sha256:{ONE}   # the last
"""
STATUS = """\
Package: libstdc++6
Status: install ok installed
Architecture: amd64
Description: a library
 Package: not-this-one
Version: 12.2.0-14+deb12u1

Package: gone
Status: deinstall ok config-files
Version: 1

Package: tzdata
Status: hold ok installed
Version: 2:2024a-0
Architecture: all
"""
METADATA = ["Metadata-Version: 2.4\nName: Foo.Bar\nVersion: 1.0\nLicense-Expression: MIT\n\nName: body\n",
            "Name: baz\r\nVersion: 2\r\nLicense: UNKNOWN\r\n\r\nName: body\r\n",
            "Name: qux\nVersion: 3\nLicense: Our Own\n"]  # fmt: skip


def test_a_lock_lists_names_versions_and_digests() -> None:
    assert parse_lock(LOCK, where="l") == [
        Package("Num_Py", "2.4.6", "pkg:pypi/num-py@2.4.6", (ONE, TWO)),
        Package("colorama", "0.4.6", "pkg:pypi/colorama@0.4.6", (ONE,), conditional=True),
        Package("torch", "2.1.0+cpu", "pkg:pypi/torch@2.1.0%2Bcpu", (ONE,)),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"a>=1 --hash=sha256:{ONE}", 1),
        ("\na==1", 2),
        ("a==1 --hash=sha256:12", 1),
        (f"a==1 --hash=md5:{ONE}", 1),
        (f"\n\nfile:///x.whl --hash=sha256:{ONE}", 3),
        (f"a==1.* --hash=sha256:{ONE}", 1),
        ("a==1 \\", 1),
    ],
)
def test_a_lock_that_locks_nothing_is_refused(text: str, place: int) -> None:
    with pytest.raises(UsageError) as refused:
        parse_lock(text, where="dir/x.lock")
    assert refused.value.where == f"dir/x.lock:{place}"


def test_our_own_locks_are_read() -> None:
    locks = sorted((ROOT / "containers").rglob("*.lock"))
    assert locks
    for lock in locks:
        names = {package.name for package in parse_lock(lock.read_text("utf-8"), where=str(lock))}
        about = lock.relative_to(ROOT / "containers").parts[0]
        # What LoadGen is compiled from is no environment to run in.
        assert "numpy" in names or about == "loadgen"
        assert any(about in name.split("-") for name in names) or about == "loadgen", lock


def test_installed_debian_packages_are_listed() -> None:
    assert parse_dpkg_status(STATUS, where="s") == [
        Package(
            "libstdc++6", "12.2.0-14+deb12u1", "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64"
        ),
        Package("tzdata", "2:2024a-0", "pkg:deb/debian/tzdata@2:2024a-0?arch=all"),
    ]
    with pytest.raises(BundleCorrupt, match="no proper name"):
        parse_dpkg_status("Package: x y\nStatus: install ok installed\nVersion: 1\n", where="s")


def test_distributions_are_listed_with_their_licences() -> None:
    assert parse_metadata(METADATA, where="m") == [
        Package("Foo.Bar", "1.0", "pkg:pypi/foo-bar@1.0", licence="MIT"),
        Package("baz", "2", "pkg:pypi/baz@2"),
        Package("qux", "3", "pkg:pypi/qux@3", licence="Our Own"),
    ]
    for text in ("", "Name: a\n", "Name: ../a\nVersion: 1\n", "Version: 1\n\nName: a\n"):
        with pytest.raises(BundleCorrupt, match="no proper name"):
            parse_metadata([text], where="m")


def test_every_distribution_that_is_installed_here_is_read() -> None:
    installed = [found for found in metadata.distributions() if found.read_text("METADATA")]
    read = parse_metadata([found.read_text("METADATA") or "" for found in installed], where="m")
    assert [(p.name, p.version) for p in read] == [(d.metadata["Name"], d.version) for d in installed]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_words(text: str) -> None:
    for parse in (
        lambda: parse_lock(text, where="x"),
        lambda: parse_dpkg_status("Status: install ok installed\n" + text, where="x"),
        lambda: parse_metadata([text], where="x"),
    ):
        with contextlib.suppress(MlbundleError):
            parse()


PACKAGES = [
    *parse_lock(LOCK, where="l"),
    *parse_dpkg_status(STATUS, where="s"),
    *parse_metadata(METADATA, where="m"),
]


def test_the_document_is_valid_and_complete() -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = make_sbom(PACKAGES, "digits", "1.0", SUBJECT.digest).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["specVersion"] == "1.6"
    assert "timestamp" not in document["metadata"]
    model = document["metadata"]["component"]
    assert (model["type"], model["name"], model["version"]) == ("machine-learning-model", "digits", "1.0")
    assert model["hashes"] == [{"alg": "SHA-256", "content": SUBJECT.digest[7:]}]
    found = {component["purl"]: component for component in document["components"]}
    assert sorted(found) == sorted(package.purl for package in PACKAGES)
    assert found["pkg:pypi/num-py@2.4.6"]["hashes"] == [
        {"alg": "SHA-256", "content": ONE}, {"alg": "SHA-256", "content": TWO},
    ]  # fmt: skip
    assert found["pkg:pypi/colorama@0.4.6"]["scope"] == "optional"
    assert found["pkg:pypi/foo-bar@1.0"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert found["pkg:pypi/qux@3"]["licenses"] == [{"license": {"name": "Our Own"}}]


def test_the_same_packages_make_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_sbom(PACKAGES, "digits", "1.0", SUBJECT.digest)
    assert make_sbom(reversed(PACKAGES * 2), "digits", "1.0", SUBJECT.digest) == first
    fewer = json.loads(make_sbom(PACKAGES[1:], "digits", "1.0", SUBJECT.digest))
    assert fewer["serialNumber"] != json.loads(first)["serialNumber"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    dated = make_sbom(PACKAGES, "digits", "1.0", SUBJECT.digest)
    assert json.loads(dated)["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"


def test_what_several_lists_say_of_a_package_is_joined() -> None:
    both = [
        Package("a", "1", "pkg:pypi/a@1", (TWO,), conditional=True),
        Package("a", "1", "pkg:pypi/a@1", (ONE,), "MIT"),
    ]
    (component,) = json.loads(make_sbom(both, "m", "1", SUBJECT.digest))["components"]
    assert [entry["content"] for entry in component["hashes"]] == [ONE, TWO]
    assert (component["licenses"], component["scope"]) == ([{"license": {"id": "MIT"}}], "required")


def test_the_referrer_is_plain_or_signed() -> None:
    sbom = make_sbom(PACKAGES, "digits", "1.0", SUBJECT.digest)
    plain = sbom_referrer(sbom, SUBJECT, "digits")
    parsed = parse_referrer(plain.manifest)
    assert parsed.artifact_type == parsed.layers[0].media_type == "application/vnd.cyclonedx+json"
    assert (parsed.subject, blob_of(plain)) == (SUBJECT, sbom)
    from mlbundle.signing.sigstore import sign

    signed = sbom_referrer(sbom, SUBJECT, "digits", A)
    trust = check([signed, sign(SUBJECT, "digits", A)], SUBJECT, "digits", [A.public])
    assert [said.predicate_type for said in trust.attestations] == ["https://cyclonedx.org/bom"]


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cyclonedx.model", None)
    with pytest.raises(ToolMissing) as refused:
        make_sbom(PACKAGES, "digits", "1.0", SUBJECT.digest)
    assert refused.value.hint == "pip install 'mlbundle[sbom]'"
