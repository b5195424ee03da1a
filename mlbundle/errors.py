"""Every error a user can meet, in one tree.

    MlbundleError
    ├── UsageError                  exit 2   the command or an option makes no sense
    │   └── ReferenceNotFound                no such file, bundle or built-in manifest
    ├── CheckFailed                 exit 1   the check said no
    │   ├── ManifestInvalid                  a manifest has problems (all of them are attached)
    │   ├── ClaimNotMet                      a measured value is outside what the manifest claims
    │   ├── OutputsDiffer                    runs that are to say the same do not
    │   └── SignatureMissing                 no signature, or none by a key that the policy trusts
    ├── EnvironmentLacks            exit 3   this machine lacks something
    │   ├── EngineUnavailable                no container engine answers
    │   ├── ImageMissing                     no image fits, or it was never built or pulled here
    │   ├── ImageBuildFailed                 the engine could not build the image
    │   ├── PythonEnvironmentFailed          the hash-locked environment could not be made
    │   ├── AcceleratorMissing               no such accelerator here, or its driver does not fit
    │   ├── EmulatorMissing                  nothing here runs programs of that architecture
    │   ├── TrustRequired                    the bundle carries code and nothing isolates it
    │   ├── AssetUnavailable                 a local asset is missing or a remote one can't be fetched
    │   ├── RegistryUnavailable              a registry or web server does not answer, or only with errors
    │   ├── RegistryDenied                   a registry wants other credentials, or none help
    │   ├── ToolMissing                      a program or an optional package is not installed
    │   ├── OwnerOutOfReach                  the process that drives a run is not ours to stop, or not found
    │   └── StorageFailed                    disk full, no permission, unusable data folder
    ├── RunFailed                   exit 4   the run itself failed
    │   ├── WorkerFailed                     the worker reported an error (fault says whose)
    │   ├── WorkerCrashed                    the worker ended without saying goodbye
    │   ├── WorkerHung                       the worker stopped answering
    │   ├── WorkerExceeded                   the worker went over a limit (disk, output, memory)
    │   ├── ProtocolBroken                   the worker said something the protocol does not allow
    │   └── EngineDied                       the container engine went away in the middle
    ├── IntegrityError              exit 5   bytes or structure are not what they should be
    │   ├── NotABundle                       the file is no bundle at all
    │   ├── BundleCorrupt                    truncated, trailing, inconsistent or forbidden structure
    │   ├── DigestMismatch                   the bytes do not have the digest that names them
    │   ├── SourceChanged                    a file changed while it was being packed
    │   ├── UnsafePath                       a path that leaves its folder or breaks the grammar
    │   ├── RegistryAnswerInvalid            a registry answers what no registry may
    │   ├── SignatureInvalid                 a signature does not hold for what it is attached to
    │   └── ImageMismatch                    the image at hand is not the one that is pinned
    └── Interrupted                 exit 130 stopped by the user (143 by SIGTERM)

A `reference` is stable kebab-case: scripts and documentation may rely on it. Messages say what happened,
`where` says in which file, line or JSON pointer, `hint` says what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXIT_YES = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_RUN_FAILED = 4
EXIT_INTEGRITY = 5
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class MlbundleError(Exception):
    """Root of all errors that are shown to a user.

    `message` says what happened, `where` names the file, line:column or JSON pointer, `context` holds
    further lines worth reading (the end of a log), `hint` the next step.
    """

    reference: ClassVar[str] = "mlbundle-error"
    exit_code: int = EXIT_RUN_FAILED

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        context: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.context = tuple(context)
        self.hint = hint

    def to_document(self) -> dict[str, Any]:
        """Return the error as the JSON document that `--json` prints."""
        return {
            "schema": "mlbundle/error/v1",
            "reference": self.reference,
            "message": self.message,
            "where": self.where,
            "context": list(self.context),
            "hint": self.hint,
            "exit_code": self.exit_code,
        }


class UsageError(MlbundleError):
    """The command or an option makes no sense."""

    reference = "usage"
    exit_code = EXIT_USAGE


class ReferenceNotFound(UsageError):
    """Nothing has this name: no file, no bundle, no built-in manifest."""

    reference = "reference-not-found"


class CheckFailed(MlbundleError):
    """The check ran and said no."""

    reference = "check-failed"
    exit_code = EXIT_NO


class ManifestInvalid(CheckFailed):
    """A manifest has problems; `problems` holds every one of them as a JSON-ready mapping."""

    reference = "manifest-invalid"

    def __init__(self, message: str, *, problems: Sequence[dict[str, Any]] = (), **details: Any) -> None:
        super().__init__(message, **details)
        self.problems = tuple(problems)

    def to_document(self) -> dict[str, Any]:
        """Return the error with all problems."""
        return {**super().to_document(), "problems": list(self.problems)}


class ClaimNotMet(CheckFailed):
    """A measured value is outside what the manifest claims."""

    reference = "claim-not-met"


class OutputsDiffer(CheckFailed):
    """Runs that are to say the same do not, or can't be compared."""

    reference = "outputs-differ"


class SignatureMissing(CheckFailed):
    """There is no signature, or none by a key that the policy trusts."""

    reference = "signature-missing"


class EnvironmentLacks(MlbundleError):
    """This machine lacks something that the command needs."""

    reference = "environment-lacks"
    exit_code = EXIT_ENVIRONMENT


class EngineUnavailable(EnvironmentLacks):
    """No container engine answers."""

    reference = "engine-unavailable"


class ImageMissing(EnvironmentLacks):
    """No image fits this machine, or the one that does was never built or pulled here."""

    reference = "image-missing"


class ImageBuildFailed(EnvironmentLacks):
    """The engine could not build the image."""

    reference = "image-build-failed"


class PythonEnvironmentFailed(EnvironmentLacks):
    """The hash-locked Python environment could not be made."""

    reference = "python-environment-failed"


class AcceleratorMissing(EnvironmentLacks):
    """What the run asks for is not here, or its driver does not fit."""

    reference = "accelerator-missing"


class EmulatorMissing(EnvironmentLacks):
    """Nothing on this machine runs programs of the architecture that is asked for."""

    reference = "emulator-missing"


class TrustRequired(EnvironmentLacks):
    """The bundle carries code and nothing here isolates it."""

    reference = "trust-required"


class AssetUnavailable(EnvironmentLacks):
    """An asset that a manifest names is missing or can't be fetched."""

    reference = "asset-unavailable"


class RegistryUnavailable(EnvironmentLacks):
    """A registry or web server does not answer, or only with errors."""

    reference = "registry-unavailable"


class RegistryDenied(EnvironmentLacks):
    """A registry wants other credentials, or lets nobody do this."""

    reference = "registry-denied"


class ToolMissing(EnvironmentLacks):
    """A program or an optional package that this needs is not installed."""

    reference = "tool-missing"


class OwnerOutOfReach(EnvironmentLacks):
    """The process that drives a run is another user's, or is not found from here."""

    reference = "owner-out-of-reach"


class StorageFailed(EnvironmentLacks):
    """The disk is full, a folder can't be written, or the data folder is unusable."""

    reference = "storage-failed"


class RunFailed(MlbundleError):
    """The run itself failed."""

    reference = "run-failed"
    exit_code = EXIT_RUN_FAILED


class WorkerFailed(RunFailed):
    """The worker reported an error; `fault` is bundle, framework, environment or mlbundle."""

    reference = "worker-failed"

    def __init__(self, message: str, *, fault: str = "mlbundle", **details: Any) -> None:
        super().__init__(message, **details)
        self.fault = fault

    def to_document(self) -> dict[str, Any]:
        """Return the error with the party at fault."""
        return {**super().to_document(), "fault": self.fault}


class WorkerCrashed(RunFailed):
    """The worker ended without its closing message."""

    reference = "worker-crashed"


class WorkerHung(RunFailed):
    """The worker stopped answering and was killed."""

    reference = "worker-hung"


class WorkerExceeded(RunFailed):
    """The worker went over a limit and was killed."""

    reference = "worker-exceeded-limit"


class ProtocolBroken(RunFailed):
    """The worker said something that the protocol does not allow."""

    reference = "protocol-broken"


class EngineDied(RunFailed):
    """The container engine went away in the middle of a run."""

    reference = "engine-died"


class IntegrityError(MlbundleError):
    """Bytes or structure are not what they should be."""

    reference = "integrity"
    exit_code = EXIT_INTEGRITY


class NotABundle(IntegrityError):
    """The file is not a bundle at all."""

    reference = "not-a-bundle"


class BundleCorrupt(IntegrityError):
    """The structure of a bundle is broken or forbidden."""

    reference = "bundle-corrupt"


class DigestMismatch(IntegrityError):
    """The bytes do not have the digest that names them."""

    reference = "digest-mismatch"


class SourceChanged(IntegrityError):
    """A file changed while it was being packed."""

    reference = "source-changed"


class UnsafePath(IntegrityError):
    """A path leaves its folder or breaks the grammar."""

    reference = "unsafe-path"


class RegistryAnswerInvalid(IntegrityError):
    """A registry or web server answers what it may not: its answer can't be used."""

    reference = "registry-answer-invalid"


class SignatureInvalid(IntegrityError):
    """A signature does not hold for what it is attached to."""

    reference = "signature-invalid"


class ImageMismatch(IntegrityError):
    """The image at hand is not the one that is pinned."""

    reference = "image-mismatch"


class Interrupted(MlbundleError):
    """The user stopped the command."""

    reference = "interrupted"
    exit_code = EXIT_INTERRUPTED


def error_of_document(document: Mapping[str, Any]) -> MlbundleError:
    """Return the error that another process of ours wrote as a document, with its exit code, as the same type."""
    types = [MlbundleError]
    for known in types:
        types += known.__subclasses__()
    reference = document["reference"]
    type_ = next((known for known in types if known.reference == reference), MlbundleError)
    error = type_(
        str(document["message"]),
        where=document["where"],
        context=document["context"],
        hint=document["hint"],
    )
    error.exit_code = document["exit_code"]
    return error


def internal_error(error: Exception, context: Sequence[str] = ()) -> MlbundleError:
    """Return the error of something that should not have happened."""
    return MlbundleError(
        f"this should not have happened: {type(error).__name__}: {error}",
        context=context,
        hint="please report it with the output of the same command under `mlbundle -vv`",
    )
