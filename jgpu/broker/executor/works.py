"""The works of a session: what runs in order, in a lane, when its turn comes.

A work is launched and finished by the lane that it was given to; on `cpu` that is a worker thread,
on `cuda` the pump. It touches its session's buffers, generators, arena and reply stream, which no
other thread touches meanwhile, and nothing of the pump's.

The rule that must not be broken: replies, failures among them, leave in the order of the works.
"""

from collections.abc import Iterable
from enum import StrEnum
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

import torch

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Buffer, Definition, Failure, Outcome, RunContext
from jgpu.errors import ProgramError, ProtocolError
from jgpu.wire import limits, messages

if TYPE_CHECKING:
    from jgpu.broker.executor.session import Session
    from jgpu.wire.messages import TensorReport

__all__ = [
    "DownloadWork",
    "RngWork",
    "RunWork",
    "SyncWork",
    "UploadWork",
    "Work",
    "WorkState",
    "bits",
    "report_failure",
]

#: what a work takes that computes nothing, in seconds, and what a byte takes that is copied
_LEAST_S: Final = 5e-6
_COPY_S: Final = 2e-10
#: buffers named in one `Failed`
_IDS: Final = limits.MAX_SLOTS


class WorkState(StrEnum):
    """How far a work has come."""

    #: received; waits for its definition, or behind one that does
    RECEIVED = "received"
    #: the scheduler knows it
    OFFERED = "offered"
    #: given to a lane
    LAUNCHED = "launched"
    DONE = "done"
    #: taken back before it was launched
    CANCELLED = "cancelled"


def bits(flags: bytes, count: int) -> list[int]:
    """Indices below `count` whose bit is set, least significant bit first."""
    number = int.from_bytes(flags, "little") & ((1 << count) - 1)
    found = []
    while number:
        lowest = number & -number
        found.append(lowest.bit_length() - 1)
        number ^= lowest
    return found


def report_failure(
    session: "Session", failure: Failure, buffers: Iterable[int], request: int | None = None
) -> None:
    """Tell the client of a failure and of what it poisoned, in as many messages as it takes."""
    ids = tuple(buffers)
    for start in range(0, max(1, len(ids)), _IDS):
        session.send(
            messages.Failed(
                failure.work,
                failure.op,
                failure.name[: limits.MAX_NAME],
                failure.error[: limits.MAX_NAME],
                failure.text[: limits.MAX_TEXT],
                ids[start : start + _IDS],
                request,
            )
        )


class Work:
    """Base of all works."""

    #: bytes of the frame that brought it, roughly, while it is queued
    nbytes = 64
    #: bytes of fresh storages that exist at most at once while it runs
    transient = 0

    def __init__(self, session: "Session", number: int, *, ends_iteration: bool) -> None:
        self.session = session
        #: the client's number for it
        self.number = number
        #: the scheduler's number for it, unique in this executor
        self.key = 0
        self.ends_iteration = ends_iteration
        self.state = WorkState.RECEIVED
        #: `Free` and `Tag` that came before it
        self.before: list[messages.Free | messages.Tag] = []
        self.measured_s = 0.0
        #: the client broke the protocol with this work; the sentence
        self.violation: str | None = None
        #: the session was over before it was launched
        self.skipped = False

    @property
    def ready(self) -> bool:
        """Whether the scheduler may be told of it."""
        return True

    def predicted_s(self) -> float:
        """Seconds that it will hold its lane; 0 if unknown."""
        return _LEAST_S

    def launch(self, port: Port) -> None:
        """Do it, or enqueue it on the device."""
        if self.session.over:
            self.skipped = True
            return
        self.session.settle(self.before, port)
        try:
            self.do(port)
        except ProtocolError as error:
            self.violation = str(error)
            self.session.violated = True

    def finish(self) -> None:
        """The device is through with it."""
        if not self.skipped and self.violation is None:
            self.reply()

    def do(self, port: Port) -> None:
        """The work itself; a `ProtocolError` ends the session."""
        raise NotImplementedError

    def reply(self) -> None:
        """Tell the client what it is to know."""

    def broke(self, error: BaseException) -> None:
        """A bug of ours showed; the session cannot go on, all else can."""
        self.session.note_bug(self, error)
        self.violation = f"The executor made a mistake with this session: {error!r}."

    def cancel(self, port: Port, failure: Failure) -> list[int]:
        """Take it back before it started; returns the buffers that it leaves poisoned."""
        self.session.settle(self.before, port)
        return []

    @property
    def request(self) -> int | None:
        """The request that waits for a reply of this work."""
        return None


class RunWork(Work):
    """A program over the session's buffers."""

    def __init__(self, session: "Session", message: messages.Run) -> None:
        super().__init__(session, message.work, ends_iteration=message.ends_iteration)
        self.message = message
        #: the program, or why there is none; None while it is awaited
        self.definition: Definition | ProgramError | None = None
        live = int.from_bytes(message.live, "little").bit_count()
        ids = len(message.inputs) + len(message.free) + 2 * len(message.params)
        self.nbytes = 64 + 8 * ids + 64 * live
        self._failures: list[tuple[Failure, list[int]]] = []
        self._learnt: tuple[TensorReport, ...] = ()

    @property
    def ready(self) -> bool:
        """The definition is known, or known to be bad."""
        return self.definition is not None

    def predicted_s(self) -> float:
        """What runs of this program took."""
        if isinstance(self.definition, Definition):
            return self.definition.predicted_s or 0.0
        return 0.0

    def do(self, port: Port) -> None:
        """Run the program, or fail as a whole."""
        message, session = self.message, self.session
        session.drop(message.free, port)
        if not isinstance(self.definition, Definition):
            self._fail("ProgramError", str(self.definition))
            return
        buffers = [session.buffer(number) for number in message.inputs]
        dead = [message.inputs[k] for k in bits(message.dead, len(buffers))]
        if not session.may_use(self.transient):
            self._fail("OutOfMemoryError", session.out_of_memory(self.transient))
        else:
            try:
                self._run(self.definition, buffers, port)
            except ProgramError as error:
                self._fail("ProgramError", str(error))
        session.drop(dead, port)

    def _run(self, definition: Definition, buffers: list[Buffer], port: Port) -> None:
        message, session = self.message, self.session
        context = RunContext(
            session.torch_device, session.generators, work=self.number, report=message.report
        )
        session.table.note_peak(self.transient)
        port.use(buffers)
        # On the way only where this lane alone ever had them; `do` drops them in any case.
        dead = message.dead if port.owns(buffers) else b""
        outcome = definition.run(buffers, message.params, message.live, dead, context)
        while outcome.suspended is not None:
            # The memory was promised and is not there: the host is short of it.
            outcome = definition.abandon(outcome.suspended, context)
        for k in definition.resized:
            session.table.remeasure(buffers[k])
        self._keep(outcome, port)

    def _keep(self, outcome: Outcome, port: Port) -> None:
        session, first = self.session, self.message.first
        poisoned: dict[int, list[int]] = {id(failure): [] for failure in outcome.failures}
        fresh = []
        for k, output in enumerate(outcome.outputs):
            if output is None:
                continue
            if isinstance(output, Failure):
                poisoned.setdefault(id(output), []).append(first + k)
                session.put(Buffer(first + k, None, 0, poison=output), port)
            else:
                fresh.append(Buffer(first + k, output))
                session.put(fresh[-1], port)
        port.made(fresh)
        self._failures = [(failure, poisoned[id(failure)]) for failure in outcome.failures]
        self._learnt = outcome.learnt

    def _outputs(self) -> list[int]:
        """Numbers of the buffers that somebody will ask for."""
        return [self.message.first + k for k in bits(self.message.live, 8 * len(self.message.live))]

    def _fail(self, error: str, text: str) -> None:
        """The program did not run at all."""
        failure = Failure(self.number, 0, "", error, text)
        outputs = self._outputs()
        for number in outputs:
            self.session.table.poison(number, failure)
        self._failures = [(failure, outputs)]

    def reply(self) -> None:
        """Report failures and learnt geometry."""
        for failure, buffers in self._failures:
            report_failure(self.session, failure, buffers)
        if self._learnt or self.message.report:
            self.session.send(messages.Learnt(self.number, self.message.program, self._learnt))

    def cancel(self, port: Port, failure: Failure) -> list[int]:
        """Poison what it would have made."""
        super().cancel(port, failure)
        self.session.drop(self.message.free, port)
        self.session.drop(
            [self.message.inputs[k] for k in bits(self.message.dead, len(self.message.inputs))],
            port,
        )
        outputs = self._outputs()
        for number in outputs:
            self.session.table.poison(number, failure)
        return outputs


class UploadWork(Work):
    """Host bytes for a buffer."""

    def __init__(self, session: "Session", message: messages.Upload) -> None:
        super().__init__(session, message.work, ends_iteration=False)
        self.message = message
        self.nbytes = 64 + len(message.data or b"")
        self.count = message.count if message.data is None else len(message.data)
        self.transient = message.size if message.offset == 0 else 0
        #: position of the arena's ring up to which the bytes are the client's again
        self.position: int | None = None
        if message.offset + self.count > message.size:
            raise ProtocolError("An upload has more bytes than its buffer.")
        if message.data is None:
            session.arena_upload(message.arena, message.count)
            self.position = session.reserve_arena(message.arena, message.count)
        self._failure: Failure | None = None

    def predicted_s(self) -> float:
        """A copy at the speed of memory."""
        return _LEAST_S + _COPY_S * self.count

    def do(self, port: Port) -> None:
        """Make the buffer with the first piece; copy the bytes."""
        message, session = self.message, self.session
        whole = message.offset == 0 and self.count == message.size
        buffer = session.table.buffers.get(message.buffer)
        if buffer is None or (buffer.poison is not None and whole):
            if message.offset and not session.lost:
                raise ProtocolError("The first piece of an upload begins at offset 0.")
            buffer = self._make(port)
        elif buffer.poison is None and buffer.nbytes != message.size:
            raise ProtocolError(
                f"An upload of {message.size} bytes names buffer {message.buffer}, which has "
                f"{buffer.nbytes}."
            )
        if buffer.poison is None and self.count:
            self._copy(buffer, port)

    def _make(self, port: Port) -> Buffer:
        message, session = self.message, self.session
        try:
            if not session.may_use(message.size):
                raise torch.OutOfMemoryError(session.out_of_memory(message.size))
            made = Buffer.allocate(message.buffer, message.size, session.torch_device)
        except (RuntimeError, MemoryError) as error:
            self._failure = Failure(self.number, 0, "upload", "OutOfMemoryError", str(error))
            made = Buffer(message.buffer, None, 0, poison=self._failure)
        session.put(made, port)
        port.made([made])
        return made

    def _copy(self, buffer: Buffer, port: Port) -> None:
        message = self.message
        source: memoryview | bytes
        if message.data is None:
            source = self.session.arena_upload(message.arena, message.count)
        else:
            source = message.data
        port.use([buffer])
        port.write(buffer.bytes()[message.offset : message.offset + self.count], source)

    def reply(self) -> None:
        """Give the arena's bytes back."""
        if self._failure is not None:
            report_failure(self.session, self._failure, [self.message.buffer])
        if self.position is not None:
            self.session.connection.acknowledge(self.position)

    def cancel(self, port: Port, failure: Failure) -> list[int]:
        """Poison the buffer; the bytes are the client's again."""
        super().cancel(port, failure)
        old = self.session.table.poison(self.message.buffer, failure)
        if old is not None:
            port.retire([old])
        self.reply()
        return [self.message.buffer]


class DownloadWork(Work):
    """Bytes of a buffer for the host."""

    def __init__(self, session: "Session", message: messages.Download) -> None:
        super().__init__(session, message.work, ends_iteration=message.ends_iteration)
        self.message = message
        self._data: bytearray | None = None
        self._failure: Failure | None = None
        if message.arena is not None:
            session.arena_download(message.arena, message.count)
        elif message.count > limits.INLINE_BYTES:
            raise ProtocolError(f"A download of {message.count} bytes needs the arena.")

    @property
    def request(self) -> int | None:
        """Somebody waits for the bytes."""
        return self.message.request

    def predicted_s(self) -> float:
        """A copy at the speed of memory."""
        return _LEAST_S + _COPY_S * self.message.count

    def do(self, port: Port) -> None:
        """Copy the bytes out."""
        message = self.message
        buffer = self.session.buffer(message.buffer)
        if buffer.poison is not None:
            self._failure = buffer.poison
            return
        if message.offset + message.count > buffer.nbytes:
            raise ProtocolError(
                f"A download lies past the end of buffer {message.buffer} ({buffer.nbytes} bytes)."
            )
        if message.arena is None:
            self._data = bytearray(message.count)
        if message.count:
            port.use([buffer])
            port.read(buffer, message.offset, self._target())

    def _target(self) -> memoryview:
        if self._data is not None:
            return memoryview(self._data)
        assert self.message.arena is not None
        return self.session.arena_download(self.message.arena, self.message.count)

    def reply(self) -> None:
        """Reply with the bytes, or with what happened to them."""
        if self._failure is not None:
            report_failure(self.session, self._failure, (), self.message.request)
            return
        data = None if self._data is None else bytes(self._data)
        self.session.send(messages.Downloaded(self.message.request, data))


class SyncWork(Work):
    """Everything before it is done."""

    def __init__(self, session: "Session", message: messages.Sync) -> None:
        super().__init__(session, message.work, ends_iteration=message.ends_iteration)
        self._request = message.request

    @property
    def request(self) -> int | None:
        """Somebody waits."""
        return self._request

    def do(self, port: Port) -> None:
        """Nothing but to be reached."""

    def reply(self) -> None:
        """Say so."""
        self.session.send(messages.Synced(self._request, monotonic_ns()))


class RngWork(Work):
    """Seeds, reads or sets a generator of the session."""

    def __init__(
        self, session: "Session", message: messages.Seed | messages.GetRng | messages.SetRng
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
