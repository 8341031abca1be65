"""One process's session on the shared device, as all others see it.

A façade over `outbox` (runs), `asker` (requests), `transfers` (copies) and `arrivals` (messages).
All use of the connection holds one lock, taken only here; appending an op needs none.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jgpu.device.client.arrivals import Arrivals
from jgpu.device.client.asking import Asker
from jgpu.device.client.buffers import ClientBuffers
from jgpu.device.client.connection import BrokerConnection
from jgpu.device.client.notebook.progress import NotebookProgress
from jgpu.device.client.notebook.waits import Waits
from jgpu.device.client.oplog import OpLog
from jgpu.device.client.outbox import Outbox
from jgpu.device.client.questions import DeviceQuestions
from jgpu.device.client.requests import Requests
from jgpu.device.client.transfers import Transfers
from jgpu.device.client.transport import Transport
from jgpu.device.errors import use_of_lost
from jgpu.device.geometry import InternedGeometry
from jgpu.device.interrupts import quiet
from jgpu.device.recording.infer import OpPlan
from jgpu.device.recording.learnt import LearntGeometry
from jgpu.device.tensor import BufferHandle
from jgpu.wire import messages as m

__all__ = ["ClientSession"]

#: seconds that a look at the state waits for a thread that computes
_MOMENT_S = 0.2


class ClientSession:
    """The process's connection, log, buffers and questions; `generators` are numbered by `rng`."""

    def __init__(self, connect: Callable[[], Transport], generators: Any) -> None:
        self._lock = threading.RLock()
        self.generators = generators
        #: ops that are not sent yet, and storages: read by `recording` at each op
        self.log = OpLog()
        self.buffers = ClientBuffers()
        #: notices to show in a cell that waits for other users
        self.waits = Waits()
        #: geometry that the device put right, also for benchmarks
        self.learnt = LearntGeometry()
        self.connection = BrokerConnection(connect)
        self.requests = Requests()
        self.outbox = Outbox(self.connection, self.log, self.buffers, generators.forget_states)
        speaking = self.connection, self.outbox, self.requests, self.waits
        self._asker = Asker(*speaking)
        self._transfers = Transfers(self.connection, self.outbox, self._asker)
        self._questions = DeviceQuestions(self.outbox, self._asker, self.learnt)
        self._arrivals = Arrivals(*speaking, self.learnt)
        self.connection.handlers = self._arrivals.handlers
        self.progress = NotebookProgress(self)
        for part in (self.log, self.buffers, self.outbox, self.requests):
            self.connection.on_forget.append(part.forget)

    # -- recording ---------------------------------------------------------------------------

    def append(
        self,
        plan: OpPlan,
        buffers: list[BufferHandle],
        offsets: list[int],
        outs: tuple[BufferHandle, ...],
        params: list[Any],
    ) -> None:
        """One op; the log is cut when the piece is full."""
        log = self.log
        frame = log.frame or log.look()
        line = frame.f_lasti if frame is not None else -1
        log.entries.append((plan, buffers, offsets, outs, params, line))
        if len(log.entries) >= log.limit:
            self.cut_piece()

    def cut(self, *, ends_iteration: bool = False) -> int:
        """Send the recorded ops as one run; return its work number, 0 if there were none."""
        with self._lock:
            work = self.outbox.cut(ends_iteration=ends_iteration)
            self._asker.wait_for_device()
            return work

    def cut_piece(self) -> None:
        """Send the recorded ops that make a full piece."""
        with self._lock:
            if not self.log.grow():
                self.outbox.cut(but=self.log.joint())
                self._asker.wait_for_device()

    def cut_around(self, change: Callable[[], Any]) -> Any:
        """Call a function that may set a switch of torch; see `Outbox.cut_around`."""
        with self._lock:
            return self.outbox.cut_around(change)

    def tag_resident(self, handles: Sequence[BufferHandle]) -> None:
        """These buffers are the model: parameters, module buffers, optimizer state."""
        fresh = [buffer for buffer in handles if not buffer.resident]
        if not fresh:
            return
        if any(not buffer.id for buffer in fresh):
            self.cut()
        self.outbox.tag_resident(fresh)

    def exchange(self, first: BufferHandle, second: BufferHandle) -> None:
        """Exchange two storages at the executor, after all recorded ops."""
        with self._lock:
            self.outbox.exchange(first, second)

    # -- transfers ---------------------------------------------------------------------------

    def upload(self, data: Any, nbytes: int) -> BufferHandle:
        """A new buffer holding a copy of `data` (flat bytes); copied when this returns."""
        with self._lock:
            return self._transfers.upload(data, nbytes)

    def fill(self, buffer: BufferHandle, data: Any) -> bool:
        """Fill a buffer that the executor does not know yet, in place of what would make it.

        False, and nothing has happened, where something else was recorded of it.
        """
        with self._lock:
            return self._transfers.fill(buffer, data)

    def download(self, buffer: BufferHandle, start: int, target: Any) -> None:
        """Fill `target` (a flat writable memoryview of bytes); waits where they are not known."""
        with self._lock:
            if self._transfers.take_known(buffer, start, target):
                return
            self.outbox.cut(ends_iteration=True, send=False)
            if buffer.graveyard is not self.buffers.graveyard:
                raise use_of_lost(self, buffer)
            self._transfers.download(buffer, start, target)

    # -- asking ------------------------------------------------------------------------------

    def run_alone(
        self, plan: OpPlan, buffers: list[BufferHandle], offsets: list[int], params: list[Any]
    ) -> list[tuple[BufferHandle, InternedGeometry | None]]:
        """Run one op whose output sizes depend on data, and wait for them."""
        with self._lock:
            return self._questions.run_alone(plan, buffers, offsets, params)

    def probe(self, plan: OpPlan, params: Sequence[Any]) -> list[InternedGeometry | None] | None:
        """Request the geometries that a kernel returns; None if they depend on data."""
        with self._lock:
            return self._questions.probe(plan, params)

    def choose(self, make: Callable[[int], Any]) -> tuple[int, ...]:
        """Request a choice of the device in one round trip; `make` makes the request."""
        with self._lock:
            return self._questions.choose(make)

    def synchronize(self) -> None:
        """Wait until all work sent so far is done."""
        with self._lock:
            self.outbox.cut(ends_iteration=True)
            self.outbox.release()
            if self.is_connected:
                self._asker.request_rest(m.Sync)

    def memory(self, *, reset_peak: bool = False) -> m.MemoryIs:
        """Bytes free, total, used and peak, when all that was recorded so far is done."""
        with self._lock:
            self.synchronize()
            return self._questions.memory(reset_peak=reset_peak)

    def state_of_generator(self, index: int) -> bytes:
        """The state of a generator when all that was recorded so far is done."""
        with self._lock:
            return self._questions.state_of_generator(index)

    def send_ordered(self, make: Callable[[int], Any]) -> None:
        """Queue a message that takes its place in the order of works (seeds, random states)."""
        with self._lock:
            self.outbox.send_ordered(make)

    def seed(self, index: int, value: int) -> None:
        """Seed a generator in the order of works; opens no connection for that alone."""
        with self._lock:
            self.outbox.seed(index, value)

    def ask(
        self,
        make: Callable[[int, int], Any],
        asked: Callable[[], None],
        answered: Callable[[Any], None],
    ) -> None:
        """Send a request in the order of works without waiting; see `Asker.ask`."""
        with self._lock:
            self.outbox.cut()
            self._asker.ask(make, asked, answered)

    def release(self) -> None:
        """Report buffers that Python has freed to the broker now."""
        with self._lock:
            self.outbox.release()

    def notify(self, message: Any) -> None:
        """Send a message if there is a connection; never open one."""
        with self._lock:
            self.outbox.notify(message)

    def poll(self) -> None:
        """Process the messages that have arrived, without waiting."""
        with self._lock:
            if (link := self.connection.link) is not None:
                self.connection.pump(link)

    def catch_up(self) -> bool:
        """Send recorded ops and freed buffers, and process arrived messages, without waiting.

        False, and nothing was done, where another thread is at it for longer than a moment.
        """
        held = False
        try:
            with quiet():  # Ctrl-C must not strike between having the lock and giving it back
                held = self._lock.acquire(timeout=_MOMENT_S)
            if held:
                self.outbox.cut()
                self.outbox.release()
                self.poll()
            return held
        finally:
            if held:
                self._lock.release()

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until what arrives has made `done` true."""
        with self._lock:
            if not done():
                self._asker.wait(done, self.connection.generation)

    # -- the process -------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In a forked child: the connection is the parent's, where it had one: no other is made."""
        self._lock = threading.RLock()
        if self.used:
            self.log.refuse()
            self.connection.leave_to_parent()

    def watch_memory(
        self,
        on_ready: Callable[[m.Ready], None],
        on_change: Callable[[], None],
        explain: Callable[[], str],
    ) -> None:
        """Set callbacks: limits of memory, changes of storages, a list of the largest tensors."""
        self.connection.on_ready = on_ready
        self.buffers.held.on_change = on_change
        self._arrivals.explain_memory = explain

    def close(self) -> None:
        """End the session in good order."""
        with self._lock:
            self.connection.close()

    # -- state --------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open."""
        return self.connection.link is not None

    @property
    def used(self) -> bool:
        """Whether anything was recorded or sent so far."""
        return self.is_connected or bool(self.log.entries)

    @property
    def settled(self) -> bool:
        """Whether everything recorded so far is known to be done."""
        return self._asker.is_settled or not self.used

    @property
    def recorded(self) -> tuple[int, int]:
        """Changes whenever an op was recorded: before that, no buffer's content changes."""
        return self.connection.generation, self.log.recorded

    @property
    def round_trips(self) -> int:
        """How often this process has waited for an answer."""
        return self._asker.round_trips

    def device_facts(self) -> m.DeviceFacts:
        """Return the facts of the device; connect if necessary."""
        with self._lock:
            self.outbox.open()
            assert self.connection.ready is not None
            return self.connection.ready.device

    def living_bytes(self, unsent: Iterable[BufferHandle]) -> int:
        """Bytes of all buffers that are not forgotten, those among them that were not sent yet."""
        with self._lock:
            return self.outbox.living_bytes(unsent)
