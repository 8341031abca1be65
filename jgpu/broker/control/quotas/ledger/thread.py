"""A thread for calls that may block for long, which nobody has to wait for in the end.

Not asyncio's own pool: the interpreter waits for that at its end, and a server that does not answer
would hold up a broker that is to stop.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["BlockingThread"]

T = TypeVar("T")


class BlockingThread:
    """Calls one after the other, off the event loop."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    async def call(self, function: Callable[[], T]) -> T:
        """The function's result, or what it raises. Cancelled, the call itself goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = function()
            except BaseException as error:
                _tell(loop, future, error=error)
            else:
                _tell(loop, future, result=result)

        self._calls.put(run)
        if not self._started:
            self._started = True
            self._thread.start()
        return await future

    def close(self) -> None:
        """End the thread after the calls that were made; waits for nothing."""
        self._calls.put(None)

    def _run(self) -> None:
        while (run := self._calls.get()) is not None:
            run()


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[Any]",
    *,
    result: Any = None,
    error: BaseException | None = None,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    with suppress(RuntimeError):  # the loop has ended; nobody asks any more
        loop.call_soon_threadsafe(settle)
