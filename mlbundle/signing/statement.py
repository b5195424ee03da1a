"""In-toto statements: who says what about which digest (in-toto attestation framework, statement v1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX, is_hex, parse_digest
from mlbundle.bundle.oci import go_json
from mlbundle.bundle.strictjson import Fields, loads
from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_OLD_STATEMENT_TYPE = "https://in-toto.io/Statement/v0.1"
"""What attestations of others may still say; where it differs we do not look."""

MEDIA_TYPE = "application/vnd.in-toto+json"
SIGN_PREDICATE = "https://sigstore.dev/cosign/sign/v1"
"""What a signature says: nothing but that the subject is signed."""

MAX_STATEMENT_BYTES = 24 << 20
MAX_SUBJECTS = 1024


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement is about, and of which kind it is; `digests` are sha256 in hex."""

    digests: frozenset[str]
    predicate_type: str

    def is_about(self, digest: str) -> bool:
        """Return whether `digest` (with its algorithm) is a subject."""
        return digest.removeprefix(PREFIX) in self.digests


def make_statement(
    name: str, digest: str, predicate_type: str = SIGN_PREDICATE, predicate: Mapping[str, Any] | None = None
) -> bytes:
    """Return a statement about the manifest with this digest; raises BundleCorrupt for a malformed digest."""
    hexadecimal = parse_digest(digest, where="subject of a statement")
    return go_json({
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hexadecimal}}],
        "predicateType": predicate_type,
        "predicate": dict(predicate or {}),
    })  # fmt: skip


def parse_statement(data: bytes, *, where: str) -> Statement:
    """Return what a statement is about; unknown keys are passed over. Raises BundleCorrupt."""
    fields = Fields(loads(data, where=where, max_bytes=MAX_STATEMENT_BYTES), f"{where}#")
    if fields.text("_type") != _OLD_STATEMENT_TYPE:
        fields.constant("_type", STATEMENT_TYPE)
    digests = set()
    for subject in fields.objects("subject", maximum=MAX_SUBJECTS):
        digest = subject.object("digest")
        if not digest.has("sha256"):
            continue
        hexadecimal = digest.text("sha256")
        if not is_hex(hexadecimal):
            raise BundleCorrupt("no sha256 in lower-case hex", where=f"{digest.where}/sha256")
        digests.add(hexadecimal)
    return Statement(frozenset(digests), fields.text("predicateType"))
