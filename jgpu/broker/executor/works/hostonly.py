"""Works that compute nothing on the device: waits for all before them, and random states.

Invariant: a random state is set where it stands in the order of works, also where it is taken back.
"""

from typing import TYPE_CHECKING

import torch

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Failure
from jgpu.broker.executor.works.base import Work, report_failure
from jgpu.broker.flightpage import Kind
from jgpu.wire import messages

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["RngWork", "SyncWork"]


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
