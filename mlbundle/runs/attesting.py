"""Signatures, bills of materials and provenance: made for a bundle, attached to it wherever it is, and checked."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlbundle import __version__
from mlbundle.bundle.assemble import with_referrers, write_archive
from mlbundle.bundle.digests import PREFIX
from mlbundle.bundle.oci import MANIFEST_TYPE
from mlbundle.bundle.output import already_there, holding
from mlbundle.bundle.overlay import MemoryBlobs
from mlbundle.bundle.pack import pack
from mlbundle.bundle.reader import open_bundle
from mlbundle.errors import IntegrityError, ReferenceNotFound, UsageError
from mlbundle.signing.referrers import Subject
from mlbundle.store.staging import staging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mlbundle.bundle.attachments import Referrer as AttachedReferrer
    from mlbundle.bundle.content import BundleContent
    from mlbundle.bundle.pack import Packed
    from mlbundle.bundle.reader import BundleReader
    from mlbundle.config import Settings
    from mlbundle.runs.network import Network
    from mlbundle.runs.references import Reference
    from mlbundle.signing.keys import PrivateKey
    from mlbundle.signing.policy import Policy
    from mlbundle.signing.provenance import Dependency
    from mlbundle.signing.referrers import Referrer
    from mlbundle.signing.trust import Trust

POLICY_FILE = "trust.yml"
_DIGITS = re.compile(r"[0-9a-f]{4,64}", re.ASCII)
_SHOWN = 10
_MOST_SIGNATURE_BYTES = 8 << 20
"""The most that a referrer may have to be looked at as a signature: they are of a few KiB."""


@dataclass(frozen=True)
class Attestations:
    """What is to be attached to a bundle that is packed; `key` signs it all, `reference` is what was packed."""

    reference: str
    sbom: bool = False
    provenance: bool = False
    key: Path | None = None
    passphrase: Callable[[], str] | None = None

    @property
    def any(self) -> bool:
        """Whether anything is to be attached."""
        return self.sbom or self.provenance or self.key is not None

    def check(self, content: BundleContent) -> None:
        """Raise UsageError for what can't be made, before anything is written."""
        if self.sbom and not content.embedded:
            raise UsageError(
                "a bill of materials is of the embedded image, and none is embedded", hint="add --with-image"
            )

    def load_key(self) -> PrivateKey | None:
        """Return the key for signing; raises UsageError, ReferenceNotFound."""
        from mlbundle.signing.keys import load_private

        return None if self.key is None else load_private(self.key, self.passphrase)


def pack_attested(
    content: BundleContent,
    destination: Path,
    wanted: Attestations,
    settings: Settings,
    progress: Callable[[int, int], None] | None = None,
    *,
    overwrite: bool = False,
) -> Packed:
    """Write a bundle with what is wanted attached to it; its manifest digest is the one that `pack` gives.

    It is packed in the cache first: what is attached is about the finished bundle. Raises what `pack` raises,
    ToolMissing, and UsageError for a key that can't be used; then nothing is written.
    """
    wanted.check(content)
    key = wanted.load_key()
    if not overwrite and destination.exists():
        raise already_there(destination)
    with staging(settings.cache_dir) as folder:
        packed = pack(content, folder / "bundle.mlb", progress)
        with open_bundle(packed.path) as reader:
            added = _attachments(reader, content, wanted, key)
            write_archive(_with(reader, added), destination, overwrite=overwrite)
    return replace(packed, path=destination, size_bytes=destination.stat().st_size)


def _attachments(
    reader: BundleReader, content: BundleContent, wanted: Attestations, key: PrivateKey | None
) -> list[Referrer]:
    added = []
    if wanted.sbom:
        added.append(_sbom(reader, key))
    if wanted.provenance:
        added.append(_provenance(reader, content, wanted.reference, key))
    if key is not None:
        from mlbundle.signing import sigstore

        added.append(sigstore.sign(subject_of(reader), label_of(reader), key))
    return added


def sign(
    found: Reference,
    settings: Settings,
    network: Network,
    make: Callable[[Subject, str], Referrer],
    *,
    output: Path | None = None,
    overwrite: bool = False,
) -> tuple[str, str]:
    """Attach what `make(subject, name)` gives to a bundle: in its file, in the library or in its registry.

    With `output` the signed bundle is written there, over a file only with `overwrite`, and what was signed stays as
    it is. Returns the manifest digest and where the signature is now. Raises UsageError for a reference that nothing
    can be attached to, SourceChanged for a file that somebody replaced meanwhile.
    """
    from mlbundle.runs.opening import client_of, open_found

    if found.kind in {"manifest", "web"} and output is None:
        raise UsageError(
            f"{found.text} is no bundle that can be signed in place", hint="pack it, or name -o FILE"
        )
    if found.kind == "bundle" and output is None:
        return _sign_file(found.path, make), str(found.path)
    with open_found(found, settings, network, whole=output is not None or found.kind != "registry") as reader:
        referrer = make(subject_of(reader), label_of(reader))
        if output is not None:
            write_archive(_with(reader, [referrer]), output, overwrite=overwrite)
            return reader.manifest_digest, str(output)
        if found.kind == "library":
            from mlbundle.runs.exchange import add_to_library

            entry = add_to_library(_with(reader, [referrer]), settings)
            return reader.manifest_digest, entry.reference
        assert found.registry is not None
        with client_of(found.registry, network, to_push=True) as client:
            blobs = MemoryBlobs(referrer.blobs)
            for key, data in referrer.blobs.items():
                client.upload_blob(key, len(data), blobs)
            client.put_referrer(MANIFEST_TYPE, referrer.manifest, reader.manifest_digest)
        return reader.manifest_digest, str(found.registry)


def _sign_file(path: Path, make: Callable[[Subject, str], Referrer]) -> str:
    """Replace a bundle file by itself with what `make` gives; two at once come one after the other."""
    place = path.resolve()
    with holding(place) as held, open_bundle(place) as reader:
        referrer = make(subject_of(reader), label_of(reader))
        write_archive(_with(reader, [referrer]), place, overwrite=True, held=held)
        return reader.manifest_digest


def load_rules(
    *, policy: Path | None, keys: Sequence[Path], settings: Settings, needed: bool = False
) -> Policy | None:
    """Return who is trusted: by the keys, by the policy, else by `trust.yml` among the settings, if it is there.

    Raises UsageError and ReferenceNotFound for keys and policies that can't be used, and when nothing says whom to
    trust and that is `needed`.
    """
    from mlbundle.signing.keys import load_public
    from mlbundle.signing.policy import load_policy, policy_of_keys

    default = settings.config_dir / POLICY_FILE
    if keys:
        return policy_of_keys([load_public(path) for path in keys])
    if policy is not None or os.path.lexists(default):
        return load_policy(policy or default)
    if needed:
        raise UsageError(
            "nothing says whose signature is wanted",
            hint=f"--trust POLICY, --key PUBLIC-KEY, or a policy in {default}",
        )
    return None


def check_trust(reader: BundleReader, rules: Policy) -> Trust:
    """Return why a bundle is trusted; raises SignatureMissing, SignatureInvalid, ToolMissing."""
    from mlbundle.signing.trust import check

    return check(_signatures(reader), subject_of(reader), reader.document.model_name, rules)


def _signatures(reader: BundleReader) -> Iterator[Referrer | IntegrityError]:
    """Yield what may be a signature, each loaded when it is its turn, or why it can't be.

    Nobody keeps others from attaching to a bundle, so nothing that is attached may stand in the way of a signature.
    """
    from mlbundle.signing import sigstore, ssh
    from mlbundle.signing.referrers import load_referrer

    for entry in reader.referrers:
        if entry.artifact_type in {sigstore.BUNDLE_TYPE, ssh.SSH_TYPE}:
            try:
                yield load_referrer(reader.source, entry.manifest.digest, most_bytes=_MOST_SIGNATURE_BYTES)
            except IntegrityError as error:
                yield error


def attachment(reader: BundleReader, prefix: str) -> bytes:
    """Return what a referrer says, by its digest or the beginning of it: of a Sigstore bundle the statement that is
    signed, of anything else the first layer. Nothing is said about whether a signature holds.

    Raises UsageError for a text that is no beginning of a digest or of several, ReferenceNotFound, and BundleCorrupt,
    DigestMismatch or SignatureInvalid for a damaged one.
    """
    from mlbundle.signing import sigstore
    from mlbundle.signing.referrers import load_blob

    referrer = _referrer(reader, prefix)
    if not referrer.layers:
        raise ReferenceNotFound("the attachment is empty", where=referrer.manifest.digest)
    layer = referrer.layers[0]
    data = load_blob(reader.source, layer.hex, layer.size_bytes)
    if referrer.artifact_type != sigstore.BUNDLE_TYPE:
        return data
    envelope = sigstore.parse_bundle(data, where=referrer.manifest.digest)
    return data if isinstance(envelope, sigstore.Foreign) else envelope.payload


def _referrer(reader: BundleReader, prefix: str) -> AttachedReferrer:
    digits = prefix.lower().removeprefix(PREFIX)
    if not _DIGITS.fullmatch(digits):
        raise UsageError(
            f"{prefix!r} is not the beginning of a digest", hint="`mlbundle inspect` lists what is attached"
        )
    found = [entry for entry in reader.referrers if entry.manifest.hex.startswith(digits)]
    if not found:
        raise ReferenceNotFound(
            f"nothing with the digest {prefix} is attached to the bundle",
            where=reader.name,
            hint="`mlbundle inspect` lists what is attached",
        )
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} attachments begin with {prefix}",
            context=[entry.manifest.digest for entry in found[:_SHOWN]],
            hint="give more of the digest",
        )
    return found[0]


def subject_of(reader: BundleReader) -> Subject:
    """Return what a referrer of a bundle is about: the model manifest."""
    return Subject(MANIFEST_TYPE, reader.manifest_digest, len(reader.manifest_bytes))


def label_of(reader: BundleReader) -> str:
    """Return how a statement calls a bundle."""
    return f"{reader.document.model_name}:{reader.document.model_version}"


def _with(reader: BundleReader, added: Sequence[Referrer]) -> BundleReader:
    return with_referrers(reader, [(referrer.manifest, referrer.blobs) for referrer in added])


def _sbom(reader: BundleReader, key: PrivateKey | None) -> Referrer:
    from mlbundle.runs.stack import packages_of
    from mlbundle.signing.sbom import make_sbom, sbom_referrer

    packages = [
        package
        for image in reader.images
        for platform in image.platforms
        for package in packages_of(platform, reader.source)
    ]
    document = reader.document
    sbom = make_sbom(packages, document.model_name, document.model_version, reader.manifest_digest)
    return sbom_referrer(sbom, subject_of(reader), label_of(reader), key)


def _provenance(
    reader: BundleReader, content: BundleContent, reference: str, key: PrivateKey | None
) -> Referrer:
    from mlbundle.signing.provenance import Build, provenance_referrer

    build = Build(
        reference=reference,
        builder_version=__version__,
        options={
            "compress_groups": content.compression.groups,
            "compress_weights": content.compression.weights,
            "embedded": [
                "/".join(filter(None, (source.framework, source.accelerator))) for source in content.embedded
            ],
        },
        dependencies=_dependencies(reader),
    )
    return provenance_referrer(build, subject_of(reader), label_of(reader), key)


def _dependencies(reader: BundleReader) -> list[Dependency]:
    from mlbundle.signing.provenance import Dependency

    files = [Dependency(entry.path, f"sha256:{entry.sha256}") for entry in reader.files]
    images = [
        Dependency(str(pin.place), digest, pin.image)
        for pin in reader.document.images
        for digest in pin.digests[:1]
    ]
    return [*files, *images]
