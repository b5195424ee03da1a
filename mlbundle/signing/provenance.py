"""How a bundle came to be: SLSA provenance v1 in an in-toto statement (slsa.dev/spec/v1.0/provenance)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import parse_digest
from mlbundle.signing import sigstore
from mlbundle.signing import statement as intoto
from mlbundle.signing.referrers import Layer, Referrer, Subject, make_referrer
from mlbundle.signing.source_date import source_date_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlbundle.signing.keys import PrivateKey

PROVENANCE_PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:mlbundle:pack:v1"
BUILDER = "urn:mlbundle"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Something that went into a bundle: an asset or an image, by its digest; `uri` is where it came from."""

    name: str
    digest: str
    uri: str | None = None


@dataclass(frozen=True, slots=True)
class Build:
    """One packing.

    `reference` is what was packed as the user named it, `options` what the user asked for, `internal` what mlbundle
    decided; both JSON-ready without fractions. `builder_version` is mlbundle's.
    """

    reference: str
    builder_version: str
    options: Mapping[str, Any]
    dependencies: Sequence[Dependency] = ()
    internal: Mapping[str, Any] | None = None
    invocation_id: str | None = None


def make_predicate(build: Build) -> dict[str, Any]:
    """Return the SLSA provenance of a packing; dependencies are in the order of their names.

    Raises BundleCorrupt for a malformed digest, UsageError for a SOURCE_DATE_EPOCH that is no time.
    """
    definition: dict[str, Any] = {
        "buildType": BUILD_TYPE,
        "externalParameters": {"reference": build.reference, "options": dict(build.options)},
    }
    if build.internal:
        definition["internalParameters"] = dict(build.internal)
    ordered = sorted(build.dependencies, key=lambda entry: (entry.name, entry.digest, entry.uri or ""))
    definition["resolvedDependencies"] = [_descriptor(entry) for entry in ordered]
    details: dict[str, Any] = {"builder": {"id": BUILDER, "version": {"mlbundle": build.builder_version}}}
    metadata = {"invocationId": build.invocation_id, "startedOn": source_date_text()}
    stated = {key: value for key, value in metadata.items() if value is not None}
    if stated:
        details["metadata"] = stated
    return {"buildDefinition": definition, "runDetails": details}


def provenance_referrer(build: Build, subject: Subject, name: str, key: PrivateKey | None = None) -> Referrer:
    """Return the provenance of a manifest as its referrer: signed by `key`, or a plain statement (no proof)."""
    predicate = make_predicate(build)
    if key is not None:
        return sigstore.attest(subject, name, PROVENANCE_PREDICATE, predicate, key)
    statement = intoto.make_statement(name, subject.digest, PROVENANCE_PREDICATE, predicate)
    annotations = {"in-toto.io/predicate-type": PROVENANCE_PREDICATE}
    layer = Layer(intoto.MEDIA_TYPE, statement, annotations)
    return make_referrer(intoto.MEDIA_TYPE, [layer], subject)


def _descriptor(entry: Dependency) -> dict[str, Any]:
    hexadecimal = parse_digest(entry.digest, where=entry.name)
    located = {} if entry.uri is None else {"uri": entry.uri}
    return {"name": entry.name, **located, "digest": {"sha256": hexadecimal}}
