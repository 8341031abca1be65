"""A thread for what must not hold up the pump: checking definitions, probing ops.

Tasks are done in order; what comes of them is handed back on the pump's thread, by `collect`.

The rule that must not be broken: a task touches nothing of the pump's.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

__all__ = ["Aside"]

_Task = Callable[[], Any]
_Then = Callable[[Any], None]


class Aside:
    """One helper thread; `wake` is called after each task, on that thread."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._tasks: SimpleQueue[tuple[_Task, _Then] | None] = SimpleQueue()
        self._results: deque[tuple[_Then, Any]] = deque()
        self._wake = wake
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def put(self, task: _Task, then: _Then) -> None:
        """Do `task` aside; then call `then` on the pump with its result, or its exception."""
        self._tasks.put((task, then))

    def collect(self) -> None:
        """Hand back what is done."""
        while self._results:
            then, result = self._results.popleft()
            then(result)

    def close(self) -> None:
        """End the thread after the task that it does."""
        self._tasks.put(None)

    def _serve(self) -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        while (entry := self._tasks.get()) is not None:
            task, then = entry
            try:
                result = task()
            except Exception as error:
                result = error
            self._results.append((then, result))
            self._wake()
