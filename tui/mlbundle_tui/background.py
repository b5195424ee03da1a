"""Work that takes long and can't be broken off, beside the screen: nobody who quits waits for it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.screen import Screen

P = ParamSpec("P")
R = TypeVar("R")


async def in_background(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a thread of its own and return what it returns, or raise what it raises.

    Who is cancelled stops waiting at once; the thread goes on, and ends with the process at the latest. (Those of the
    event loop's own pool are waited for at its end.)
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[R] = loop.create_future()

    def settle(result: R | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result: R | None = None
        failure: BaseException | None = None
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failure = error
        with suppress(RuntimeError):  # the loop has ended: nobody waits
            loop.call_soon_threadsafe(settle, result, failure)

    # The context has the app, which what is called may ask to show something.
    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(call,), name=getattr(function, "__name__", "work"), daemon=True
    ).start()
    return await answer


async def beside(screen: Screen[Any], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function as `in_background` does, for a worker of a screen, which ends when the screen is gone by then."""
    try:
        return await in_background(function, *args, **kwargs)
    finally:
        # Its widgets go before its workers are cancelled.
        if not screen.display:
            raise asyncio.CancelledError
