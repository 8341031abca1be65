"""A thread for what must not hold up the pump: checking definitions, probing ops.

Tasks of one owner are done in order, those of several owners in turn, so that nobody waits for
more than one task of each neighbour. What comes of a task is handed back on the pump's thread, by
`collect`.

The rule that must not be broken: a task touches nothing of the pump's.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import torch

from jgpu.broker.flightpage import Kind, Record

__all__ = ["Aside"]

_Task = Callable[[], Any]
_Then = Callable[[Any], None]


class Aside:
    """One helper thread; `wake` is called after each task, on that thread.

    Its `flight` says whose task is being done. A task that knows more may begin it again there.
    """

    def __init__(
        self,
        name: str,
        wake: Callable[[], None],
        kind: Kind = Kind.OTHER,
        flight: Record | None = None,
    ) -> None:
        self.flight = flight or Record.unseen()
        self._kind = kind
        self._lock = Lock()
        #: tasks by owner, the owner whose turn is next first; no empty entries
        self._tasks: OrderedDict[int, deque[tuple[_Task, _Then]]] = OrderedDict()
        #: one True for each task, False to end
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._results: deque[tuple[_Then, Any]] = deque()
        self._wake = wake
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def put(self, owner: int, task: _Task, then: _Then) -> None:
        """Do `task` aside; then call `then` on the pump with its result, or its exception."""
        with self._lock:
            self._tasks.setdefault(owner, deque()).append((task, then))
        self._tokens.put(True)

    def collect(self) -> None:
        """Hand back what is done."""
        while self._results:
            then, result = self._results.popleft()
            then(result)

    def close(self) -> None:
        """Do the tasks that were put, and end the thread."""
        self._tokens.put(False)
        self._thread.join(timeout=5)

    def _next(self) -> tuple[int, _Task, _Then]:
        with self._lock:
            owner, tasks = self._tasks.popitem(last=False)
            task, then = tasks.popleft()
            if tasks:
                self._tasks[owner] = tasks
            return owner, task, then

    def _serve(self) -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        while self._tokens.get():
            owner, task, then = self._next()
            self.flight.begin(owner, 0, self._kind)
            try:
                result = task()
            except Exception as error:
                result = error
            self.flight.rest()
            self._results.append((then, result))
            self._wake()
