"""Lists of what is inside a bundle: CycloneDX 1.6 JSON, the same bytes for the same packages."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.digests import PREFIX, parse_digest
from mlbundle.errors import ToolMissing
from mlbundle.signing import sigstore
from mlbundle.signing.referrers import Layer, Referrer, Subject, make_referrer
from mlbundle.signing.source_date import source_date_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlbundle.signing.keys import PrivateKey
    from mlbundle.signing.packages import Package

SBOM_TYPE = "application/vnd.cyclonedx+json"
SBOM_PREDICATE = "https://cyclonedx.org/bom"


def make_sbom(packages: Iterable[Package], name: str, version: str, digest: str) -> bytes:
    """Return the SBOM of the bundle of a model; `digest` is of its manifest.

    A package that is listed more than once stands there once. The only time in it is SOURCE_DATE_EPOCH, its serial
    number is made of its content. Raises ToolMissing when cyclonedx-python-lib is not installed, UsageError for a
    SOURCE_DATE_EPOCH that is no time.
    """
    merged = _merged(packages)
    parse_digest(digest, where="subject of an SBOM")
    try:
        document = _document(merged, name, version, digest)
    except ImportError as error:
        raise ToolMissing(
            f"an SBOM needs cyclonedx-python-lib: {error}", hint="pip install 'mlbundle[sbom]'"
        ) from error
    document.pop("serialNumber", None)
    document["metadata"].pop("timestamp", None)
    created = source_date_text()
    if created is not None:
        document["metadata"]["timestamp"] = created
    content = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, content).urn
    return json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


def sbom_referrer(sbom: bytes, subject: Subject, name: str, key: PrivateKey | None = None) -> Referrer:
    """Return the referrer of an SBOM: as it is, or as an attestation that `key` signs."""
    if key is not None:
        return sigstore.attest(subject, name, SBOM_PREDICATE, json.loads(sbom), key)
    return make_referrer(SBOM_TYPE, [Layer(SBOM_TYPE, sbom)], subject)


def _merged(packages: Iterable[Package]) -> list[Package]:
    """Return each package once, with all that was said about it, in the order of their package URLs."""
    found: dict[str, Package] = {}
    for package in packages:
        known = found.get(package.purl)
        if known is None:
            found[package.purl] = package
            continue
        found[package.purl] = replace(
            known,
            sha256=tuple(sorted({*known.sha256, *package.sha256})),
            licence=known.licence or package.licence,
            conditional=known.conditional and package.conditional,
        )
    return [found[purl] for purl in sorted(found)]


def _document(packages: list[Package], name: str, version: str, digest: str) -> dict[str, Any]:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    root = Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=name,
        version=version,
        bom_ref=digest,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix(PREFIX))],
    )
    components = [_component(package) for package in packages]
    bom = Bom(components=components, metadata=BomMetaData(component=root))
    bom.register_dependency(root, components)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    return document


def _component(package: Package) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentScope, ComponentType
    from packageurl import PackageURL

    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=package.purl,
        purl=PackageURL.from_string(package.purl),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in package.sha256],
        licenses=[] if package.licence is None else [_licence(package.licence)],
        scope=ComponentScope.OPTIONAL if package.conditional else ComponentScope.REQUIRED,
    )


def _licence(text: str) -> Any:
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from cyclonedx.spdx import fixup_id, is_expression

    identifier = fixup_id(text)
    if identifier is not None:
        return DisjunctiveLicense(id=identifier)
    return LicenseExpression(text) if is_expression(text) else DisjunctiveLicense(name=text)
