"""Trust policies as files: every problem with its place."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signing_samples import SUBJECT, A, B

from mlbundle.errors import MlbundleError, ReferenceNotFound, SignatureMissing, UsageError
from mlbundle.signing.policy import load_policy
from mlbundle.signing.sigstore import sign
from mlbundle.signing.trust import check

SSH = "ada@example.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0Q0n9cCSyHUaRQIMA8EGqEWKRYZX6DzuVYYvrhRfP7"
INLINE = "".join(f"        {line}\n" for line in B.public.pem.decode().splitlines())
GOOD = f"""\
schema: mlbundle/trust/v1
rules:
  - name: digits-*
    require: signature
    keys:
      - keys/a.pub
      - |
{INLINE}    ssh:
      - {SSH}
    threshold: 2
  - {{name: scratch, require: nothing}}
"""


def write(folder: Path, text: str | bytes) -> Path:
    (folder / "keys").mkdir(exist_ok=True)
    (folder / "keys" / "a.pub").write_bytes(A.public.pem)
    path = folder / "trust.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_policy_is_read_with_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)
    monkeypatch.chdir("/")
    policy = load_policy(path)
    first, second = policy.rules
    assert first.keys == (A.public, B.public)
    assert [signer.identity for signer in first.ssh] == ["ada@example.org"]
    assert (first.require, first.threshold, second.require, second.threshold) == (
        "signature",
        2,
        "nothing",
        1,
    )
    assert first.place == f"{path}:3:5"
    assert (policy.rule_for("digits-cnn"), policy.rule_for("scratch"), policy.rule_for("x")) == (
        first,
        second,
        None,
    )
    both = [sign(SUBJECT, "digits-cnn", key) for key in (A, B)]
    assert len(check(both, SUBJECT, "digits-cnn", policy).signers) == 2
    with pytest.raises(SignatureMissing, match="1 of 2") as refused:
        check(both[:1], SUBJECT, "digits-cnn", policy)
    assert refused.value.where == f"{path}:3:5"


RULE = "schema: mlbundle/trust/v1\nrules:\n  - name: '*'\n    require: signature\n"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "1:1", "is empty"),
        ("- a\n", "1:1", "is no mapping"),
        ("schema: mlbundle/trust/v1\n", "1:1", "'rules' is missing"),
        ("schema: mlbundle/trust/v2\nrules: [{name: a, require: nothing}]\n", "1:9", "mlbundle/trust/v2"),
        ("schema: mlbundle/trust/v1\nrules: []\n", "2:8", "rules is empty"),
        (RULE, "3:5", "by nobody"),
        (RULE + "    keys: []\n", "3:5", "by nobody"),
        (RULE + "    keys: [keys/none.pub]\n", "5:12", "there is no key"),
        (RULE + "    keys: [trust.yml]\n", "5:12", "not a public key"),
        (RULE + "    keys: [keys]\n", "5:12", "regular file"),
        (RULE + "    keys: ['-----BEGIN PUBLIC KEY-----']\n", "5:12", "not a public key"),
        (RULE + "    keys: keys/a.pub\n", "5:11", "a list"),
        (RULE + "    ssh: ['* " + SSH.split(" ", 1)[1] + "']\n", "5:11", "identity"),
        (RULE + "    keys: [keys/a.pub]\n    threshold: 2\n", "6:16", "only 1 may"),
        (RULE + "    keys: [keys/a.pub, keys/a.pub]\n    threshold: 2\n", "6:16", "only 1 may"),
        (RULE + "    keys: [keys/a.pub]\n    threshold: 0\n", "6:16", "too small"),
        (RULE + "    keys: [keys/a.pub]\n    threshold: yes\n", "6:16", "threshold"),
        (RULE + "    key: [keys/a.pub]\n", "5:5", "unknown key 'key'"),
        (RULE + "    require: nothing\n", "5:5", "repeated"),
        (RULE.replace("signature", "signatur"), "4:14", "did you mean 'signature'"),
        (RULE.replace("signature", "nothing") + "    keys: [keys/a.pub]\n", "5:5", "says nothing"),
        (RULE + "    keys: [&x keys/a.pub, *x]\n", "5:12", "anchor"),
        (RULE + "    keys: !!python/object:os.system [x]\n", "5:11", "tag"),
        (b"\xff", "1:1", "not UTF-8"),
        ("a: [" * 40, "1:", "nested too deeply"),
        (RULE + " " * (1 << 20), "1:1", "too large"),
    ],
)
def test_problems_have_places(tmp_path: Path, text: str | bytes, place: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        load_policy(path)
    assert (refused.value.where or "").startswith(f"{path}:{place}"), refused.value.where
    assert words in "\n".join((*refused.value.context, refused.value.hint or ""))


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, RULE + "    keys: [no.pub, nor.pub]\n  - {name: b, require: signature}\n")
    with pytest.raises(UsageError, match="3 problems") as refused:
        load_policy(path)
    assert [line.split(":")[1] for line in refused.value.context] == ["5", "5", "6"]


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ReferenceNotFound):
        load_policy(tmp_path / "none.yml")
    with pytest.raises(UsageError, match="regular file"):
        load_policy(tmp_path)


@given(st.binary(max_size=120), st.integers(0, len(GOOD)))
def test_any_damage_is_handled(tmp_path_factory: pytest.TempPathFactory, junk: bytes, place: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    good = GOOD.encode()
    with contextlib.suppress(MlbundleError):
        load_policy(write(folder, good[:place] + junk + good[place + len(junk) :]))
