"""Asking the executor, and waiting for what it says.

All waits of the process go through `wait`, which an interrupt leaves at once, having had the cell's
works taken back. A wait ends with the answer, with a failure that was reported before it, or with
the loss of the device that was asked.
"""

import sys
from collections.abc import Callable
from typing import Any

from jgpu.device.client.connection import BrokerConnection
from jgpu.device.client.notebook.waits import Waits
from jgpu.device.client.outbox import Outbox
from jgpu.device.client.requests import PendingRequest, Requests
from jgpu.device.errors import anew
from jgpu.device.hooks.guard import raise_kept
from jgpu.device.interrupts import quiet
from jgpu.wire import messages as m

__all__ = ["Asker", "show_sentence"]


def show_sentence(text: str) -> None:
    """Show a sentence in the cell that runs, or wherever the program's errors go."""
    if sys.stderr is not None:
        sys.stderr.write(f"jgpu: {text}\n")


class Asker:
    """Sends questions, and waits."""

    def __init__(
        self, connection: BrokerConnection, outbox: Outbox, requests: Requests, waits: Waits
    ) -> None:
        self._connection = connection
        self._outbox = outbox
        self._requests = requests
        self._waits = waits
        #: round trips so far, for tests and benchmarks
        self.round_trips = 0
        #: position up to which everything is done
        self._settled = (0, 0, 0)

    @property
    def is_settled(self) -> bool:
        """Whether everything recorded so far is known to be done."""
        return self._settled == self._outbox.position

    # -- questions ---------------------------------------------------------------------------

    def request(self, make: Callable[[int], m.ClientMessage], *, into_arena: bool = False) -> Any:
        """Send a request and wait for its reply; failures reported before it are raised."""
        link = self._outbox.open()
        requests, generation = self._requests, self._connection.generation
        request = requests.new()
        try:
            with quiet():
                link.queue(make(request.number))
                (requests.ask_into_arena if into_arena else requests.ask)(request)
            self.wait(lambda: request.is_answered, generation)
        finally:
            requests.leave(request)
        if isinstance(request.answer, BaseException):
            raise anew(request.answer)
        return request.answer

    def request_ordered(
        self, make: Callable[[int, int], m.ClientMessage], *, into_arena: bool = False
    ) -> Any:
        """As `request`, of a message that takes its place in the order of works."""
        return self.request(
            lambda number: make(self._outbox.next_work(), number), into_arena=into_arena
        )

    def request_rest(self, make: Callable[[int, int], m.ClientMessage]) -> Any:
        """As `request_ordered`, of a message that is answered when all before it is done."""
        reply = self.request_ordered(make)
        self._outbox.ahead.clear()
        self._settled = self._outbox.position
        return reply

    def ask(
        self,
        make: Callable[[int, int], m.ClientMessage],
        asked: Callable[[], None],
        answered: Callable[[Any], None],
    ) -> None:
        """Send a request in the order of works and go on.

        `asked` is called when it is on its way, and from then on `answered` will be: with the
        reply, or with None if the device is lost first or the request is taken back. Failures of
        earlier work stay for the next wait.
        """
        link = self._outbox.open()
        with quiet():
            request = self._requests.new(answered)
            link.queue(make(self._outbox.next_work(), request.number))
            self._requests.ask(request)
            asked()
        self._connection.pump(link)

    def wait_for_arena(self) -> None:
        """Wait until nothing is written to the arena: the reader before was interrupted."""
        requests = self._requests
        if not requests.arena_is_free:
            self.wait(lambda: requests.arena_is_free, self._connection.generation)

    def wait_for_report(self, send: Callable[[Callable[[int], PendingRequest]], int]) -> m.Learnt:
        """Have a run sent that will be reported on, and wait for what the executor found."""
        requests, generation = self._requests, self._connection.generation
        asked: list[PendingRequest] = []

        def ask(work: int) -> PendingRequest:
            asked.append(requests.ask_report(work))
            return asked[0]

        try:
            send(ask)
            self.wait(lambda: asked[0].is_answered, generation)
        finally:
            for request in asked:
                requests.leave(request)
        learnt: m.Learnt = asked[0].answer
        return learnt

    # -- waiting -----------------------------------------------------------------------------

    def wait_for_device(self) -> None:
        """Wait while recording is too far ahead of the device."""
        ahead = self._outbox.ahead
        if ahead.is_too_far:
            self.wait(lambda: not ahead.is_too_far, self._connection.generation)

    def wait(self, done: Callable[[], bool], generation: int) -> None:
        """Wait for an answer to what was queued in `generation`; a newer one never gives it.

        What is queued leaves here: nobody looks for an answer before there can be one.
        """
        raise_kept()
        self.round_trips += 1
        link = self._outbox.open()
        connection, waits = self._connection, self._waits
        try:
            while not done():
                connection.still(link, generation)
                connection.pump(link, waits.timeout_s())
                if said := waits.sentence():
                    show_sentence(said)
                if self._requests.failures:
                    self._raise_failure()
            waits.over()
            connection.still(link, generation)
            if self._requests.failures:
                self._raise_failure()
        except KeyboardInterrupt:
            self.cancel()
            raise

    def _raise_failure(self) -> None:
        failures = self._requests.failures
        if failures:  # nobody took them meanwhile
            raise anew(failures.pop(0))

    def cancel(self) -> None:
        """Have this cell's works taken back; a second time, while it waits for others, all."""
        requests, outbox = self._requests, self._outbox
        outbox.buffers.reads.clear()
        outbox.ahead.clear()
        link = self._connection.link
        if link is not None:
            with quiet():
                request = requests.new()
                since = 0 if requests.takes_back else outbox.before_cell
                link.queue(m.Cancel(request.number, since))
                requests.ask_back(request)
            self._connection.pump(link)
