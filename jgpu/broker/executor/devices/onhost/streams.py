"""HostStreams and events as CUDA has them, over host memory: what is put on them runs later.

Tasks of one stream run in order. Between streams nothing but waits for events orders them, and who
comes next is drawn from a seed: some streams are held back for a while, so that whoever forgot to
wait for them is found out. Nothing runs by itself: whoever asks about an event, or waits for one,
lets the streams go on.

Covers order and faults; what a task does is the affair of whoever puts it there.

Invariant: a task runs once, after all before it on its stream and after each event that its stream
was told to wait for.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from threading import RLock, local
from time import perf_counter
from typing import Final

import torch

__all__ = ["HostEvent", "HostStream", "HostStreams"]

#: streams that torch hands out; the one after them is the first again
_MOST: Final = 32
#: tasks between two draws of which streams are held back
_SPELL: Final = 24
#: most tasks that one look at an event lets run
_A_LOOK: Final = 16
_ASSERTED: Final = "CUDA error: device-side assert triggered"


class HostEvent:
    """A place in a stream. Recorded anew, it is another place."""

    __slots__ = ("at_s", "reached", "recorded")

    def __init__(self) -> None:
        #: how often it was recorded, and which of these places was reached last
        self.recorded = 0
        self.reached = 0
        #: when that was, in seconds of the host's clock
        self.at_s = 0.0


class HostStream:
    """What is still to be done, oldest first: tasks, and (event, place) to wait for."""

    __slots__ = ("number", "tasks")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tasks: deque[Callable[[], object] | tuple[HostEvent, int]] = deque()

    def held_up(self) -> bool:
        """Whether it is empty, or waits for an event; waits that are over are taken off."""
        tasks = self.tasks
        while tasks:
            first = tasks[0]
            if not isinstance(first, tuple):
                return False
            event, place = first
            if event.reached < place:
                return True
            tasks.popleft()
        return True


class HostStreams:
    """All streams of one device. Any thread; tasks run on the one that lets them."""

    def __init__(self, seed: int = 0) -> None:
        self.lock: Final = RLock()
        self._random = Random(seed)
        self._all: list[HostStream] = []
        self._of_thread = local()
        #: streams held back, and tasks until that is drawn anew
        self._slow: frozenset[int] = frozenset()
        self._spell = 0
        #: what broke the device, for good
        self.fault: str | None = None

    def stream(self) -> HostStream:
        """A new stream; raises RuntimeError where torch would hand out one that exists."""
        if len(self._all) == _MOST:
            raise RuntimeError(f"Torch hands out {_MOST} streams, and no more.")
        self._all.append(HostStream(len(self._all)))
        return self._all[-1]

    def check(self) -> None:
        """Raise what CUDA raises, at every call, once the device is broken."""
        if self.fault is not None:
            raise torch.AcceleratorError(self.fault)

    def put(self, stream: HostStream, task: Callable[[], object]) -> None:
        """Have something done on a stream."""
        with self.lock:
            self.check()
            stream.tasks.append(task)

    def record(self, event: HostEvent, stream: HostStream) -> None:
        """The event is reached when the stream gets here."""
        with self.lock:
            event.recorded += 1
            place = event.recorded

            def reach() -> None:
                event.reached, event.at_s = place, perf_counter()

            self.put(stream, reach)

    def wait(self, stream: HostStream, event: HostEvent) -> None:
        """The stream goes on only when the place that the event is at now was reached."""
        with self.lock:
            self.check()
            if event.recorded:
                stream.tasks.append((event, event.recorded))

    def done(self, event: HostEvent) -> bool:
        """Whether the event was reached; the streams go on meanwhile."""
        with self.lock:
            self.check()
            for _ in range(self._random.randrange(_A_LOOK)):
                if event.reached == event.recorded or not self._step():
                    break
            self.check()
            return event.reached == event.recorded

    def synchronize(self, event: HostEvent) -> None:
        """Let the streams go on until the event was reached."""
        self._until(lambda: event.reached == event.recorded)

    def drain(self, stream: HostStream) -> None:
        """Let the streams go on until this one is empty."""
        self._until(lambda: not stream.tasks)

    def drain_all(self) -> None:
        """Let everything be over."""
        self._until(lambda: not any(stream.tasks for stream in self._all))

    def _until(self, over: Callable[[], bool]) -> None:
        while True:
            with self.lock:
                self.check()
                if over():
                    return
                # a step takes away waits that are over, and may find that nothing else was left
                if not self._step() and not over():
                    raise RuntimeError("The streams wait for each other.")

    def _step(self) -> bool:
        """Run one task of a stream that the seed says; False where none can go on."""
        able = [stream for stream in self._all if not stream.held_up()]
        if not able:
            return False
        self._spell -= 1
        if self._spell < 0:
            self._spell = self._random.randrange(_SPELL)
            self._slow = frozenset(
                stream.number for stream in self._all if self._random.random() < 0.5
            )
        quick = [stream for stream in able if stream.number not in self._slow]
        self.have_one_core()
        task = self._random.choice(quick or able).tasks.popleft()
        assert not isinstance(task, tuple)
        try:
            task()
        except Exception as error:
            self.break_down(error)
        return True

    def have_one_core(self) -> None:
        """Sums are the same whichever thread lets the streams go on."""
        if not getattr(self._of_thread, "has_one_core", False):
            torch.set_num_threads(1)
            self._of_thread.has_one_core = True

    def break_down(self, error: BaseException) -> None:
        """A kernel asserted: nothing works from here on, and nothing can be read back."""
        if self.fault is None:
            self.fault = f"{_ASSERTED} ({type(error).__name__}: {error})"
        for stream in self._all:
            stream.tasks.clear()
