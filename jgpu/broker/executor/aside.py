"""A thread for what must not hold up the pump: checking definitions, probing ops.

Tasks of one identity are done in order. Among several the one comes next whose tasks have taken
least time so far, so that whoever has much to do waits for those who have little. What comes of a
task is handed back on the pump's thread, by `collect`.

A task touches nothing of the pump's.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from time import thread_time
from typing import Any, Final

import torch

from jgpu.broker.flightpage import Kind, Record

__all__ = ["HelperThread"]

_Task = Callable[[], Any]
_Then = Callable[[Any], None]
#: identities without a task whose time is remembered
_REMEMBERED: Final = 256


class HelperThread:
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
        #: tasks by identity, each with its session, oldest first; no empty entries
        self._tasks: dict[str, deque[tuple[int, _Task, _Then]]] = {}
        #: seconds of the tasks of those who came last, lifted to that of who was served when they
        #: come anew
        self._spent: OrderedDict[str, float] = OrderedDict()
        self._served_s = 0.0
        #: one True for each task, False to end
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        #: what is done, for `collect`
        self.results_due: deque[tuple[_Then, Any]] = deque()
        self._wake = wake
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def put(self, session: int, task: _Task, then: _Then, whose: str = "") -> None:
        """Do `task` aside; then call `then` on the pump with its result, or its exception.

        `whose` turn it takes: the identity's; empty: the session's own.
        """
        whose = whose or f"session {session}"
        with self._lock:
            if whose not in self._tasks:
                self._tasks[whose] = deque()
                self._spent[whose] = max(self._spent.pop(whose, 0.0), self._served_s)
                while len(self._spent) > _REMEMBERED + len(self._tasks):
                    self._spent.popitem(last=False)
            self._tasks[whose].append((session, task, then))
        self._tokens.put(True)

    def collect(self) -> None:
        """Hand back what is done."""
        while self.results_due:
            then, result = self.results_due.popleft()
            then(result)

    def close(self) -> None:
        """Do the tasks that were put, and end the thread."""
        self._tokens.put(False)
        self._thread.join(timeout=5)

    def _next(self) -> tuple[str, int, _Task, _Then]:
        with self._lock:
            whose = min(self._tasks, key=lambda each: self._spent.get(each, 0.0))
            tasks = self._tasks[whose]
            self._served_s = max(self._served_s, self._spent.get(whose, 0.0))
            session, task, then = tasks.popleft()
            if not tasks:
                del self._tasks[whose]
            return whose, session, task, then

    def _serve(self) -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        while self._tokens.get():
            whose, session, task, then = self._next()
            self.flight.begin(session, 0, self._kind)
            began = thread_time()
            try:
                result = task()
            except Exception as error:
                result = error
            self.flight.rest()
            with self._lock:
                self._spent[whose] = self._spent.get(whose, self._served_s) + thread_time() - began
            self.results_due.append((then, result))
            self._wake()
