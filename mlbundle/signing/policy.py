"""Trust policies (`mlbundle/trust/v1`, schema `trust.schema.json`): whose signatures a bundle needs.

Read by the loader of the manifests, so every problem has its line and column.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.errors import MlbundleError, ReferenceNotFound, StorageFailed, UsageError
from mlbundle.signing.keys import load_public

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mlbundle.manifest.problems import Problem
    from mlbundle.manifest.view import View
    from mlbundle.signing.keys import PublicKey
    from mlbundle.signing.sshsig import SshSigner

Requirement = Literal["signature", "nothing"]

SCHEMA = "mlbundle/trust/v1"
MAX_BYTES = 1 << 20
_SHOWN_PROBLEMS = 20
_PEM = "-----BEGIN "


@dataclass(frozen=True, slots=True)
class Rule:
    """What models whose name fits the pattern `name` need; `place` says where the rule stands."""

    name: str
    require: Requirement
    keys: tuple[PublicKey, ...] = ()
    ssh: tuple[SshSigner, ...] = ()
    threshold: int = 1
    place: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules in order; `file` is what errors call the policy."""

    file: str
    rules: tuple[Rule, ...]

    def rule_for(self, model_name: str) -> Rule | None:
        """Return the first rule that is for a model of this name."""
        return next((rule for rule in self.rules if fnmatchcase(model_name, rule.name)), None)


def policy_of_keys(keys: Sequence[PublicKey], ssh: Sequence[SshSigner] = ()) -> Policy:
    """Return the policy that any of these keys is enough for every model: what a key on the command line means."""
    return Policy("the given keys", (Rule("*", "signature", tuple(keys), tuple(ssh)),))


def load_policy(path: Path) -> Policy:
    """Read a trust policy and the keys that it names.

    Raises ReferenceNotFound, StorageFailed, or UsageError with every problem as `file:line:column: …`.
    """
    from mlbundle.manifest.scalars import resolve
    from mlbundle.manifest.schema_check import check_schema
    from mlbundle.manifest.source import parse_source
    from mlbundle.manifest.view import View
    from mlbundle.resources import load_schema

    source = parse_source(_read(path), str(path))
    problems = list(source.problems)
    if source.root is None:
        raise _broken(path, problems)
    document = resolve(source.root, load_schema("trust"))
    problems += check_schema(document, source.root, "trust", source.file)
    if problems:
        raise _broken(path, problems)
    view = View(document, source.root, source.file, source.text)
    rules = tuple(_rule(view, index, path.parent) for index in range(view.count("rules")))
    if view.problems:
        raise _broken(path, view.problems)
    return Policy(str(path), rules)


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError("a trust policy is a regular file", where=str(path))
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ReferenceNotFound("there is no such trust policy", where=str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageFailed(f"can't read the trust policy: {reason}", where=str(path)) from error


def _broken(path: Path, problems: Sequence[Problem]) -> UsageError:
    from mlbundle.manifest.problems import in_order, printable

    ordered = [_explained(problem) for problem in in_order(problems)]
    count = "1 problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    first = ordered[0]
    return UsageError(
        f"the trust policy has {count}",
        where=printable(f"{path}:{first.line}:{first.column}"),
        # The hint of the first problem is that of the error, and is not said twice.
        context=[str(replace(first, hint=None)), *map(str, ordered[1:_SHOWN_PROBLEMS])],
        hint=first.hint,
    )


def _explained(problem: Problem) -> Problem:
    if problem.pointer == "" and problem.message == "the key 'schema' is missing":
        return replace(problem, expected=None, hint=f"begin it with the line  schema: {SCHEMA}")
    return problem


def _rule(view: View, index: int, folder: Path) -> Rule:
    value: dict[str, Any] = view.get("rules", index)
    rule = Rule(
        name=value["name"],
        require=value["require"],
        keys=_each(view, index, "keys", lambda text: _key(text, folder)),
        ssh=_each(view, index, "ssh", _signer),
        threshold=value.get("threshold", 1),
        place=_place(view, index),
    )
    _check_rule(view, index, rule)
    return rule


def _check_rule(view: View, index: int, rule: Rule) -> None:
    value = view.get("rules", index)
    if rule.require == "nothing":
        for key in ("keys", "ssh", "threshold"):
            if key in value:
                view.error_at_key(
                    ("rules", index, key),
                    f"{key!r} says nothing where nothing is required",
                    "write require: signature, or leave it out",
                )
        return
    stated = view.count("rules", index, "keys") + view.count("rules", index, "ssh")
    if not stated:
        view.error(("rules", index), "a signature is required, but by nobody", "keys or ssh")
    different = len({key.id for key in rule.keys} | {signer.key.id for signer in rule.ssh})
    if stated and rule.threshold > different and len(rule.keys) + len(rule.ssh) == stated:
        view.error(
            ("rules", index, "threshold"),
            f"{rule.threshold} different keys must sign, but only {different} may",
            f"at most {different}",
        )


def _each(view: View, index: int, key: str, parse: Callable[[str], Any]) -> tuple[Any, ...]:
    """Return the parsed entries of a list of texts; what can't be parsed becomes a problem at its place."""
    found = []
    for number in range(view.count("rules", index, key)):
        text = view.text("rules", index, key, number) or ""
        try:
            found.append(parse(text))
        except MlbundleError as error:
            view.error(("rules", index, key, number), error.message, hint=error.hint)
    return tuple(found)


def _key(text: str, folder: Path) -> PublicKey:
    if text.lstrip().startswith(_PEM):
        return load_public(text.encode("utf-8"))
    path = folder / text
    try:
        return load_public(path)
    except ReferenceNotFound as error:
        raise ReferenceNotFound(
            f"there is no key {path}",
            where=error.where,
            hint="keys are named relative to the folder of the policy",
        ) from None


def _signer(text: str) -> SshSigner:
    from mlbundle.signing.sshsig import parse_signer

    return parse_signer(text, where="")


def _place(view: View, index: int) -> str:
    from mlbundle.manifest.nodes import locate

    node = locate(view.root, ("rules", index))
    return view.file if node is None else f"{view.file}:{node.mark.line}:{node.mark.column}"
