"""Documents of registries: JSON of strangers, the errors of the distribution API, links to further pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlbundle.bundle import strictjson
from mlbundle.errors import BundleCorrupt, MlbundleError, RegistryAnswerInvalid
from mlbundle.registry.messages import shown

if TYPE_CHECKING:
    from mlbundle.registry.messages import Answer

_MAX_ERROR_BYTES = 64 << 10
_MAX_LINK = 4 << 10
_NEXT = re.compile(r"""<([^<>]*)>\s*;(?:[^,]*;)?\s*rel\s*=\s*"?next"?""", re.IGNORECASE)


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object; unknown keys stay. Raises RegistryAnswerInvalid for what strictjson refuses."""
    try:
        value = strictjson.loads(data, where=where)
    except BundleCorrupt as error:
        raise RegistryAnswerInvalid(error.message, where=where) from error
    if not isinstance(value, dict):
        raise RegistryAnswerInvalid("a JSON object is expected", where=where)
    return value


def error_codes(answer: Answer) -> tuple[tuple[str, str], ...]:
    """Return (code, message) of the errors in an answer (distribution spec, "Error Codes"); reads its body.

    Nothing is raised: an answer without such a document gives none.
    """
    try:
        errors = parse_object(answer.document(_MAX_ERROR_BYTES), shown(answer.url)).get("errors")
    except MlbundleError:
        return ()
    if not isinstance(errors, list):
        return ()
    return tuple(
        (str(entry.get("code", ""))[:60], str(entry.get("message", ""))[:200])
        for entry in errors[:5]
        if isinstance(entry, dict)
    )


def describe(codes: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Return the errors of a registry as lines for the context of ours."""
    return tuple(f"{code}: {message}" for code, message in codes)


def next_page(answer: Answer) -> str | None:
    """Return the address of the next page by the Link header (RFC 8288), or None."""
    match = _NEXT.search((answer.header("Link") or "")[:_MAX_LINK])
    return match.group(1) if match else None
