"""Errors inside the worker: what happened, what to do, and whose fault it is."""

from __future__ import annotations

EXIT_COMPLETED = 0
EXIT_OF_FAULT = {"bundle": 10, "framework": 11, "environment": 12, "mlbundle": 13}


class WorkerError(Exception):
    """Something the user should read; becomes an `error` event and an exit status by its fault."""

    def __init__(self, reference: str, message: str, *, fault: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.fault = fault
        self.hint = hint

    @property
    def exit_status(self) -> int:
        """Exit status of the worker for this fault."""
        return EXIT_OF_FAULT[self.fault]


def bundle_error(reference: str, message: str, hint: str | None = None) -> WorkerError:
    """Return an error that the author of the bundle has to mend."""
    return WorkerError(reference, message, fault="bundle", hint=hint)
