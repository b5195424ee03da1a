"""Errors inside the worker: what happened, what to do, and whose fault it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

EXIT_COMPLETED = 0
EXIT_OF_FAULT = {"bundle": 10, "framework": 11, "environment": 12, "mlbundle": 13}


# Longer messages say no more; a bundle's code decides how long they are.
MAX_TEXT = 4096


class WorkerError(Exception):
    """Something the user should read; becomes an `error` event and an exit status by its fault."""

    def __init__(self, reference: str, message: str, *, fault: str, hint: str | None = None) -> None:
        message = message[:MAX_TEXT]
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


@contextmanager
def blamed_on_bundle(what: str) -> Iterator[None]:
    """Turn whatever an operator, a metric or their parameters raise into the bundle's fault, and say where."""
    try:
        yield
    except (WorkerError, MemoryError):
        raise
    except Exception as error:
        raise bundle_error(
            "operator-failed",
            "{}: {}: {}".format(what, type(error).__name__, error),
            "worker.log has the traceback",
        ) from error


@contextmanager
def blamed_on_predictor(call: str, *, own: bool) -> Iterator[None]:
    """Turn what a call of a predictor raises into the fault of the bundle whose `own` it is, else of the framework."""
    try:
        yield
    except (WorkerError, MemoryError, BrokenPipeError):  # the last: the host is gone
        raise
    except (Exception, SystemExit) as error:
        raise WorkerError(
            "predictor-failed",
            "{} of the {}: {}: {}".format(
                call, "bundle's own predictor" if own else "predictor", type(error).__name__, error
            ),
            fault="bundle" if own else "framework",
            hint="worker.log has the traceback",
        ) from error
