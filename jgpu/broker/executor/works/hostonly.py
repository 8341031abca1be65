"""Works that compute nothing on the device: waits, random states, and many buffers freed at once.

Invariant: a random state is set where it stands in the order of works, also where it is taken back.
"""

from typing import TYPE_CHECKING, Final

import torch

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Failure
from jgpu.broker.executor.works.base import Work, report_failure
from jgpu.broker.flightpage import Kind
from jgpu.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["FREED_AT_ONCE", "MANY", "FreeWork", "RngWork", "SyncWork"]

#: buffers that are freed without a pause: about a millisecond's worth
FREED_AT_ONCE: Final = 1024
#: buffers of a session that are not freed at once when it ends (`scheduling.emptying`)
MANY: Final = 8 * FREED_AT_ONCE
#: seconds that it takes to free one, and bytes of its number while it waits
_FREE_S: Final = 1e-6
_ID_BYTES: Final = 40


class SyncWork(Work):
    """Everything before it is done."""

    kind = Kind.SYNC
    reads_notes = True

    def __init__(self, session: "ExecutorSession", message: messages.Sync) -> None:
        super().__init__(session, message.work, ends_iteration=message.ends_iteration)
        self._request = message.request

    @property
    def request(self) -> int | None:
        """Somebody waits."""
        return self._request

    def do(self, port: Port) -> None:
        """Nothing but to be reached."""

    def reply(self) -> None:
        """Say so, and since when."""
        self.session.send(messages.Synced(self._request, self.over_ns))


class RngWork(Work):
    """Seeds, reads or sets a generator of the session."""

    kind = Kind.RANDOM

    def __init__(
        self, session: "ExecutorSession", message: messages.Seed | messages.GetRng | messages.SetRng
    ) -> None:
        super().__init__(session, message.work, ends_iteration=False)
        self.message = message
        self._state: bytes | None = None
        self._failure: Failure | None = None

    @property
    def request(self) -> int | None:
        """The request of a GetRng."""
        return self.message.request if isinstance(self.message, messages.GetRng) else None

    def do(self, port: Port) -> None:
        """On the host: generators are host objects, whatever the device."""
        message = self.message
        generator = self.session.generator(message.index)
        if isinstance(message, messages.Seed):
            generator.manual_seed(message.value)
        elif isinstance(message, messages.GetRng):
            self._state = generator.get_state().numpy().tobytes()
        else:
            self._set(generator, message.state)

    def cancel(self, port: Port, failure: Failure) -> list[int]:
        """Seed or set it all the same: nothing is computed, and later draws would be others."""
        super().cancel(port, failure)
        if not isinstance(self.message, messages.GetRng):
            self.do(port)
            self.reply()
        return []

    def _set(self, generator: torch.Generator, state: bytes) -> None:
        try:
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        except (RuntimeError, TypeError, ValueError) as error:
            text = f"This is no state of the device's random number generator: {error}"
            self._failure = Failure(self.number, 0, "set_state", "RuntimeError", text)

    def reply(self) -> None:
        """Reply to a GetRng."""
        if self._failure is not None:
            report_failure(self.session, self._failure, ())
        if self._state is not None:
            assert isinstance(self.message, messages.GetRng)
            self.session.send(messages.RngIs(self.message.request, self._state))


class FreeWork(Work):
    """Frees a part of many buffers that were freed by one message.

    The client does not number it: it has the number of the work before it.
    """

    is_numbered = False

    def __init__(self, session: "ExecutorSession", number: int, buffers: tuple[int, ...]) -> None:
        super().__init__(session, number, ends_iteration=False)
        self.nbytes += _ID_BYTES * len(buffers)
        self._buffers = buffers

    @classmethod
    def of(cls, session: "ExecutorSession", buffers: tuple[int, ...]) -> "Iterator[FreeWork]":
        """Works that free these buffers, behind all works that were received."""
        number = max(0, session.queue.next_number - 1)
        for at in range(0, len(buffers), FREED_AT_ONCE):
            yield cls(session, number, buffers[at : at + FREED_AT_ONCE])

    def predicted_s(self) -> float:
        """Time grows with the number of buffers."""
        return _FREE_S * len(self._buffers)

    def frees(self) -> set[int]:
        """Its own, too."""
        return super().frees().union(self._buffers)

    def do(self, port: Port) -> None:
        """Drop them."""
        self.session.drop(self._buffers, port)

    def cancel(self, port: Port, failure: Failure) -> list[int]:
        """Drop them all the same: the client has forgotten them."""
        super().cancel(port, failure)
        self.do(port)
        return []
