"""One process's session on the shared device: what was recorded goes out, what happened comes in.

Connects at first use. Programs are cut from the log at waits, at boundaries and every few ops, so
that the device works while Python still records. All waits go through `_await`, which an interrupt
leaves at once.

Invariant: ids are given and messages queued in one order under one lock, and never torn by an
interrupt (`interrupts.quiet`).
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any

from jgpu import errors
from jgpu.device import flags
from jgpu.device.client.held import HeldBytes
from jgpu.device.client.link import Link
from jgpu.device.client.notebook.loops import Loops
from jgpu.device.client.notebook.waits import Waits
from jgpu.device.client.notebook.wanted import PredictedReads
from jgpu.device.errors import anew, asked_for, from_failure, use_of_lost
from jgpu.device.geometry import InternedGeometry, from_wire
from jgpu.device.hooks.guard import raise_kept
from jgpu.device.interrupts import quiet
from jgpu.device.recording.infer import OpPlan, TensorRef
from jgpu.device.recording.learnt import LearntGeometry
from jgpu.device.recording.recorder import Cut, ProgramRecorder
from jgpu.device.tensor import BufferHandle
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire import program as wire

__all__ = ["ClientSession"]

#: Ops in the pieces that a log is cut into, counted from each boundary; the last one repeats.
PIECES = (12, 24, 48, 96, 128)
#: What the executor says unasked is taken in after so many works, if nobody waits before.
_LISTEN_EVERY = 8
#: Works whose notebook lines are kept to explain a failure.
_KEPT_WORKS = 1024
#: for so long whoever only looks waits for a thread that computes
_MOMENT_S = 0.2


class ClientSession:
    """The process's connection, log, buffers' ids and pending answers."""

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._link: Link | None = None
        self._lock = threading.RLock()
        self._recorder = ProgramRecorder()
        #: ids of buffers that Python has forgotten, appended by finalizers alone
        self.graveyard: list[int] = []
        #: number of the connection; buffers of another are lost
        self.generation = 1
        #: bytes of the buffers that the executor has
        self.held = HeldBytes()
        #: errors by id of the buffers they poisoned
        self.poisoned: dict[int, BaseException] = {}
        self.log: list[Any] = []
        #: ops that were recorded before those in the log
        self._recorded = 0
        self._piece = 0
        #: runs were sent, and not that their iteration ended
        self._iteration_open = False
        self.limit = PIECES[0]
        self._next_buffer = 1
        self._next_request = 1
        self._work = 0
        #: the last work before the cell that runs; 0 in a script
        self._before_cell = 0
        #: the last interrupt that was told, until it was answered
        self._interrupt = 0
        self._replies: dict[int, Any] = {}
        #: the download whose bytes the arena is for, until it is answered; 0 for none
        self._in_arena = 0
        #: what to call with the reply of a request that nobody waits for
        self._later: dict[int, Callable[[Any], None]] = {}
        #: position up to which everything is done
        self._settled = (0, 0, 0)
        self._wanted: set[int] = set()
        self._reports: dict[int, m.Learnt | None] = {}
        self._failures: list[errors.JgpuError] = []
        self._works: deque[tuple[int, Cut]] = deque(maxlen=_KEPT_WORKS)
        self._tags: list[int] = []
        self._lost: errors.DeviceLost | None = None
        #: why what was on the device before is gone
        self.why_lost = ""
        self._forked = False
        self.ready: m.Ready | None = None
        #: called with the text when everything on the device is gone
        self.on_lost: Callable[[str], str] = lambda text: text
        #: called with what the broker says of the device and of this user's part of it
        self.on_ready: Callable[[m.Ready], None] = lambda ready: None
        #: how many iterations the notebook's loops will still do
        self.loops = Loops()
        #: whether the cell should be told for whom it waits
        self.waits = Waits()
        #: the notebook's largest tensors, in words
        self.explain_memory: Callable[[], str] = lambda: ""
        #: frame whose line is noted with each op, how to find it, and whether to look
        self.frame: Any = None
        self.find_frame: Callable[[], Any] = lambda: None
        self.look_for_frame = True
        #: compiled statements that ops in the log were asked for by: ops before each, and its code
        self._statements: list[tuple[int, CodeType | None]] = []
        #: set by `activate`
        self.generators: Any = None
        self._seeds: dict[int, int] = {}
        self._awaited = PredictedReads()
        #: whether the executor can tell values unasked
        self._tells_values = False
        #: round trips so far, for tests and benchmarks
        self.round_trips = 0
        #: geometry that the device put right, also for benchmarks
        self.learnt = LearntGeometry()

    @property
    def number(self) -> int | None:
        """The broker's number for this session; None before it is open."""
        return self._link.welcome.session if self._link is not None else None

    @property
    def waited(self) -> float:
        """Seconds that the process has waited for the broker, now included."""
        return self._link.waited if self._link is not None else 0.0

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
        frame = self.frame or self.look()
        log.append((plan, buffers, offsets, outs, params, frame.f_lasti if frame else -1))
        if len(log) >= self.limit:
            self.cut()

    def look(self) -> Any:
        """The frame whose instructions are noted, looked for once a statement of a cell."""
        if self.look_for_frame:
            self.look_for_frame = False
            self.frame = frame = self.find_frame()
            code = frame.f_code if frame is not None else None
            self._statements.append((self._recorded + len(self.log), code))
        return self.frame

    def forget_frame(self) -> None:
        """What is recorded next is asked for by another statement."""
        self.frame = None
        self.look_for_frame = True

    def piece_is_full(self) -> None:
        """The log has as many ops as its piece may have: send it."""
        self.cut()

    def cut(
        self,
        *,
        ends_iteration: bool = False,
        report: bool = False,
        send: bool = True,
        but: Any = None,
    ) -> int:
        """Send what was recorded as one run; returns its work number, 0 if there was nothing.

        Without `send` it is queued, to leave together with the request that follows. What was
        recorded from the entry `but` on stays.
        """
        with self._lock:
            if not self.log or self.log[0] is but:
                if ends_iteration:
                    self._end_iteration(send=send)
                return 0
            raise_kept()
            link = self._open()
            sent = True
            try:
                with quiet():
                    work = self._queue_run(link, ends_iteration, report, but)
                    if send:
                        sent = link.send_now()
            except errors.DeviceLost as error:
                raise self.lost(error) from None
            if not sent or work % _LISTEN_EVERY == 0:
                self._pump(link)
            return work

    def _end_iteration(self, *, send: bool) -> None:
        """The last piece was full just now, and did not know that it was the last."""
        self._piece, self.limit = 0, PIECES[0]
        link = self._link
        if link is None or self._forked or not (self._iteration_open or self._tags):
            return
        with quiet():
            self._queue_tags(link)  # whoever rests from here on must not count its state as kept
            if self._iteration_open:
                self._iteration_open = False
                link.queue(m.IterationEnded())
        if send:
            self._pump(link)

    def _queue_run(self, link: Link, ends_iteration: bool, report: bool, but: Any) -> int:
        entries = self.log[:]
        if but is not None:
            del entries[next(k for k, entry in enumerate(entries) if entry is but) :]
        self._recorder.set_flags(flags.current())
        cut = self._recorder.cut(entries)
        del self.log[: len(entries)]
        cut.codes = self._codes_of(len(entries))
        self._iteration_open = not ends_iteration
        self._piece = 0 if ends_iteration else min(self._piece + 1, len(PIECES) - 1)
        self.limit = PIECES[self._piece]
        compiled = cut.compiled
        if compiled.draws:
            self.generators.forget_states()
        if compiled.defined != self.generation:
            link.queue(m.Define(compiled.data))
            compiled.defined = self.generation
        first = self._next_buffer
        self._next_buffer += compiled.fresh
        held = self.held
        held.add_new(first, [buffer.nbytes for buffer in cut.outputs])
        for i, buffer in enumerate(cut.outputs):
            buffer.settle(first + i)
        cut.outputs = []
        buffer = None  # type: ignore[assignment] # the loop's last one must not outlive the log
        entries.clear()
        self._work += 1
        if report:  # before anything is sent: the answer may be there at once
            self._reports[self._work] = None
        self._works.append((self._work, cut))
        self._queue_tags(link)
        cut.first = first
        live, dead, free = self._bury(first, compiled.fresh, cut.inputs)
        held.on_change()
        wanted = self._awaited.of_run(cut, live)
        params = cut.params
        if any(type(number) is complex for number in params):
            params = [(p.real, p.imag) if type(p) is complex else p for p in params]
        link.queue(
            m.Run(
                self._work, compiled.hash, tuple(cut.inputs), first, live, dead, tuple(params),
                free, ends_iteration, report, wanted,
            )
        )  # fmt: skip
        return self._work

    def _codes_of(self, count: int) -> tuple[tuple[int, CodeType | None], ...]:
        """The statements of the next so many ops, each with the first op that is its own."""
        first = self._recorded
        self._recorded += count
        codes = tuple((max(0, at - first), code) for at, code in self._statements)
        del self._statements[:-1]  # the last one may go on
        return codes

    def _bury(
        self, first: int, count: int, inputs: list[int]
    ) -> tuple[bytes, bytes, tuple[int, ...]]:
        """What Python has forgotten: outputs not needed, inputs to drop, buffers to free first."""
        buried = self._forgotten()
        live = (1 << count) - 1
        dead = 0
        free = []
        if buried:
            places = {id_: i for i, id_ in enumerate(inputs)}
            for id_ in buried:
                if first <= id_ < first + count:
                    live &= ~(1 << (id_ - first))
                elif id_ in places:
                    dead |= 1 << places[id_]
                else:
                    free.append(id_)
        size = (count + 7) // 8
        return (
            live.to_bytes(size, "little"),
            dead.to_bytes((len(inputs) + 7) // 8, "little") if dead else b"",
            tuple(free),
        )

    def _forgotten(self) -> list[int]:
        """Ids of buffers that Python has forgotten since the last time; so does everything here."""
        buried = self.graveyard[:]
        if buried:
            del self.graveyard[: len(buried)]
            self.held.drop(buried)
            self._awaited.forget(buried)
            if self.poisoned:
                for id_ in buried:
                    self.poisoned.pop(id_, None)
        return buried

    def _queue_tags(self, link: Link) -> None:
        if self._tags:
            tags, self._tags = self._tags, []
            link.queue(m.Tag(tuple(tags), m.RESIDENT))

    def tag_resident(self, buffers: Sequence[BufferHandle]) -> None:
        """These buffers are the model: parameters, module buffers, optimizer state."""
        fresh = [buffer for buffer in buffers if not buffer.resident]
        if not fresh:
            return
        if any(not buffer.id for buffer in fresh):
            self.cut()
        with quiet():
            for buffer in fresh:
                buffer.resident = True
                if buffer.graveyard is self.graveyard and buffer.id:
                    self._tags.append(buffer.id)

    def boundary(self) -> None:
        """An iteration ends here (an optimizer's step)."""
        self.cut(ends_iteration=True)
        left = self.loops.at_boundary(sys._getframe(1))
        if left is not None:
            self.notify(m.Loop(left))

    def exchange(self, first: BufferHandle, second: BufferHandle) -> None:
        """Two storages change places at the executor; what was recorded before is not concerned."""
        with self._lock:
            self.cut()
            with quiet():
                first.exchange(second)
                if first.resident:
                    self._tags.append(first.id)

    # -- transfers ---------------------------------------------------------------------------

    def upload(self, data: Any, nbytes: int) -> BufferHandle:
        """A new buffer holding a copy of `data` (flat bytes); copied when this returns."""
        with self._lock:
            self.cut()
            link = self._open()
            made = BufferHandle(nbytes, self.graveyard)
            self._fill(link, made, data)
            return made

    def fill(self, buffer: BufferHandle, data: Any) -> bool:
        """Fill a buffer that the executor does not know yet, in place of what would make it.

        False, and nothing has happened, where something else was recorded of it.
        """
        with self._lock:
            factory = self._factory_of(buffer)
            if factory is None and (buffer.id or any(buffer in entry[3] for entry in self.log)):
                return False
            self.cut(but=factory)
            link = self._open()
            if factory is None:
                buffer.graveyard = self.graveyard
            self._fill(link, buffer, data, factory)
            return True

    def is_just_made(self, buffer: BufferHandle) -> bool:
        """Whether the last recorded op does nothing but make this buffer empty."""
        return self._factory_of(buffer) is not None

    def _factory_of(self, buffer: BufferHandle) -> Any:
        """The last recorded op if it does nothing but make this buffer empty."""
        last = self.log[-1] if self.log else None
        if last is None or last[3] != (buffer,):
            return None
        return last if last[0].info.name.startswith("aten::empty") else None

    def _fill(self, link: Link, buffer: BufferHandle, data: Any, factory: Any = None) -> None:
        """Send a buffer's bytes; with the first of them the executor knows it, and so do we."""
        generation, offset = self.generation, 0
        while True:
            with quiet():
                count = self._queue_piece(link, buffer, data, offset, factory)
            self._pump(link, 1.0 if count is None else 0.0)
            offset += count or 0
            if offset == buffer.nbytes and count is not None:
                return
            self._still(link, generation)

    def _queue_piece(
        self, link: Link, buffer: BufferHandle, data: Any, offset: int, factory: Any
    ) -> int | None:
        """Queue the next bytes of an upload and return how many; None while the arena is full."""
        nbytes, inline, at = buffer.nbytes, None, 0
        if nbytes <= limits.INLINE_BYTES:
            count, inline = nbytes, bytes(data)
        else:
            ring = link.arena.ring
            count = min(ring.size // 4, nbytes - offset)
            place = ring.reserve(count)
            if place is None:
                return None
            at = place[0]
            link.arena.upload(at, count)[:] = data[offset : offset + count]
        if not offset:
            self._settle_upload(buffer, factory)
        self._work += 1
        from_arena = 0 if inline is not None else count
        link.queue(m.Upload(self._work, buffer.id, nbytes, offset, inline, at, from_arena))
        return count

    def _settle_upload(self, buffer: BufferHandle, factory: Any) -> None:
        if factory is not None:
            # Other threads may have recorded since.
            del self.log[next(k for k, entry in enumerate(self.log) if entry is factory)]
            self._recorded += 1
        self._piece, self.limit = 0, PIECES[0]
        buffer.settle(self._next_buffer)
        self._next_buffer += 1
        self.held.add(buffer.id, buffer.nbytes)
        self.held.on_change()

    def download(self, buffer: BufferHandle, start: int, target: Any) -> None:
        """Fill `target` (a flat writable memoryview of bytes) from a buffer; waits."""
        with self._lock:
            count = len(target)
            self.cut(ends_iteration=True, send=False)
            if buffer.graveyard is not self.graveyard:
                raise use_of_lost(self, buffer)
            if self._awaited.expects(buffer.id):
                told = self._told(buffer.id)
                if told is not None and start + count <= len(told):
                    target[:] = told[start : start + count]
                    return
            if count <= limits.WANTED_BYTES and self._tells_values:
                self._awaited.was_asked(buffer, self._works)
            if count <= limits.INLINE_BYTES:
                reply = self._request(
                    lambda request: m.Download(self._work, request, buffer.id, start, count)
                )
                target[:] = reply.data
                return
            self._download_pieces(buffer, start, target)

    def _told(self, buffer: int) -> bytes | None:
        """The value of a wanted buffer, when it was told; None if it has to be asked for."""
        awaited = self._awaited
        self._pump(self._open())
        self._await(lambda: awaited.told(buffer), self.generation)
        return awaited.read(buffer)

    def _download_pieces(self, buffer: BufferHandle, start: int, target: Any) -> None:
        link = self._open()
        largest = link.arena.size - link.arena.half
        for offset in range(0, len(target), largest):
            if self._in_arena:  # interrupted: it is written there yet
                self._await(lambda: not self._in_arena, self.generation)
            count = min(largest, len(target) - offset)
            self._request(
                lambda request, at=offset, n=count: m.Download(  # type: ignore[misc]
                    self._work, request, buffer.id, start + at, n, 0
                ),
                into_arena=True,
            )
            target[offset : offset + count] = link.arena.download(0, count)

    # -- asking ------------------------------------------------------------------------------

    def run_alone(
        self, plan: OpPlan, buffers: list[BufferHandle], offsets: list[int], params: list[Any]
    ) -> list[tuple[BufferHandle, InternedGeometry | None]]:
        """Run one op whose output sizes only the data tells; waits for them."""
        with self._lock:
            self.cut()
            count = len(plan.info.func._schema.returns)
            outs = tuple(BufferHandle(0, self.graveyard) for _ in range(count))
            self._open()
            frame = self.frame or self.look()
            line = frame.f_lasti if frame else -1
            self.log.append((plan, buffers, offsets, outs, params, line))
            generation = self.generation
            try:
                work = self.cut(ends_iteration=True, report=True)
                self._await(lambda: self._reports.get(work) is not None, generation)
                learnt = self._reports[work]
            finally:
                self._reports.clear()  # nobody else waits for one: the lock is held
            assert learnt is not None
            made: list[tuple[BufferHandle, InternedGeometry | None]] = [
                (buffer, None) for buffer in outs
            ]
            for tensor in learnt.tensors:
                if tensor.geometry is not None:
                    buffer = outs[tensor.index]
                    geometry = from_wire(tensor.geometry)
                    buffer.nbytes = max(geometry.nbytes, tensor.nbytes)
                    self.held.add(buffer.id, buffer.nbytes)
                    made[tensor.index] = (buffer, geometry)
            return made

    def probe(self, plan: OpPlan, params: Sequence[Any]) -> list[InternedGeometry | None] | None:
        """What the device's own kernel returns for these geometries; one round trip a new key.

        None where it is too large to be tried, and only the run can tell.
        """
        op = _probe_op(plan)
        geometries = tuple(geometry.wire for geometry in plan.geometries)
        numbers = tuple((p.real, p.imag) if type(p) is complex else p for p in params)
        self.learnt.asked += 1
        reply = self._request(
            lambda request: m.Probe(request, op, geometries, numbers, flags.current())
        )
        if reply.error is not None:
            if reply.error[0] == m.TOO_LARGE and not _returns_list(plan):
                return None
            raise _probe_error(*reply.error)
        return [None if out is None else from_wire(out) for out in reply.outputs]

    def choose(self, make: Callable[[int], Any]) -> tuple[int, ...]:
        """What the device would do by itself; `make` makes the question. One round trip."""
        reply = self._request(make)
        if reply.error is not None:
            raise _probe_error(*reply.error)
        numbers: tuple[int, ...] = reply.numbers
        return numbers

    def synchronize(self) -> None:
        """Wait until all work sent so far is done."""
        with self._lock:
            self.cut(ends_iteration=True)
            self.release()
            if self._link is not None:
                self._request(lambda request: m.Sync(self._work, request))

    def memory(self, *, reset_peak: bool = False) -> m.MemoryIs:
        """Bytes free, total, used and peak, when all that was recorded so far is done."""
        with self._lock:
            self.cut()
            self.synchronize()
            reply: m.MemoryIs = self._request(lambda request: m.Memory(request, reset_peak))
            return reply

    def release(self) -> None:
        """Tell the broker at once what Python has forgotten."""
        with self._lock:
            link = self._link
            if link is None or not self.graveyard:
                return
            with quiet():
                buried = self._forgotten()
                self.held.on_change()
                for at in range(0, len(buried), limits.MAX_SLOTS):
                    link.queue(m.Free(tuple(buried[at : at + limits.MAX_SLOTS])))
            self._pump(link)

    def send_ordered(self, make: Callable[[int], Any]) -> None:
        """Queue a message that takes its place in the order of works (seeds, random states)."""
        with self._lock:
            self.cut()
            link = self._open()
            with quiet():
                self._work += 1
                link.queue(make(self._work))
            self._pump(link)

    def request_ordered(self, make: Callable[[int, int], Any]) -> Any:
        """As `send_ordered`, and wait for the reply."""
        with self._lock:
            self.cut()
            return self._request(lambda request: make(self._work, request))

    def notify(self, message: Any) -> None:
        """Tell the broker something if there is a connection; never opens one."""
        with self._lock:
            if self._link is None or self._forked:
                return
            with quiet():
                self._queue_tags(self._link)
                self._link.queue(message)
            self._pump(self._link)

    def seed(self, index: int, value: int) -> None:
        """Seed a generator in the order of works; opens no connection for that alone."""
        with self._lock:
            if self._link is None and not self.log:
                self._seeds[index] = value
                return
            self.send_ordered(lambda work: m.Seed(work, value, index))

    def ask(
        self,
        make: Callable[[int, int], Any],
        asked: Callable[[], None],
        answered: Callable[[Any], None],
    ) -> None:
        """Send a request in the order of works and go on.

        `asked` is called when it is on its way, and from then on `answered` will be: with the
        reply, or with None if the device is lost first or the request is taken back. Failures of
        earlier work stay for the next wait.
        """
        with self._lock:
            self.cut()
            link = self._open()
            with quiet():
                request = self._next_request
                self._next_request += 1
                self._work += 1
                self._later[request] = answered
                asked()
                link.queue(make(self._work, request))
            self._pump(link)

    def poll(self) -> None:
        """Take in what has arrived, without waiting."""
        with self._lock:
            if self._link is not None and not self._forked:
                self._pump(self._link)

    def catch_up(self) -> bool:
        """Send what was recorded and forgotten and take in what has arrived, without waiting.

        False, and nothing was done, where another thread is at it for longer than a moment.
        """
        held = False
        try:
            with quiet():  # Ctrl-C must not strike between having the lock and giving it back
                held = self._lock.acquire(timeout=_MOMENT_S)
            if held:
                self.cut()
                self.release()
                self.poll()
            return held
        finally:
            if held:
                self._lock.release()

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Wait until what arrives has made `done` true."""
        with self._lock:
            if not done():
                self._await(done, self.generation)

    @property
    def position(self) -> tuple[int, int, int]:
        """Changes whenever something was recorded or sent."""
        return self.generation, self._work, len(self.log)

    @property
    def recorded(self) -> tuple[int, int]:
        """Changes whenever an op was recorded: before that, no buffer's content changes."""
        return self.generation, self._recorded + len(self.log)

    def living_bytes(self, unsent: Iterable[BufferHandle]) -> int:
        """Bytes of all buffers that are not forgotten, those among them that were not sent yet."""
        with self._lock:
            grave = self.graveyard
            waiting = {buffer for buffer in unsent if buffer.graveyard is grave}
            waiting.update(made for entry in self.log[:] for made in entry[3])
            recorded = sum(buffer.nbytes for buffer in waiting if not buffer.id)
            return self.held.nbytes - self.held.of(grave[:]) + recorded

    @property
    def settled(self) -> bool:
        """Whether everything recorded so far is known to be done."""
        return self._settled == self.position or not self.used

    @property
    def used(self) -> bool:
        """Whether anything was recorded or sent so far."""
        return self._link is not None or bool(self.log)

    def begin_cell(self, name: str) -> None:
        """A notebook cell begins: what Ctrl-C takes back is counted from here on."""
        with suppress(errors.JgpuError):  # what was lost is told at the next use
            self.notify(m.CellStarted(name))
        self._before_cell = self._work

    def finish_cell(self, result: Any) -> None:
        """A notebook cell ended: what was recorded goes out, what was forgotten is freed."""
        if self._link is None or self._forked:
            return
        try:
            self.cut(ends_iteration=True)
            self.release()
            self.notify(m.CellEnded(failed=not getattr(result, "success", True)))
        except errors.JgpuError:
            pass  # what was lost is told at the next use

    @property
    def connected(self) -> bool:
        """Whether a connection is open."""
        return self._link is not None

    def device_facts(self) -> m.DeviceFacts:
        """What the executor said of the device; connects if need be."""
        with self._lock:
            self._open()
            assert self.ready is not None
            return self.ready.device

    @property
    def bytes_sent(self) -> int:
        """Bytes written to the socket of the present connection."""
        return self._link.sent if self._link else 0

    # -- waiting and arriving ----------------------------------------------------------------

    def _request(self, make: Callable[[int], Any], *, into_arena: bool = False) -> Any:
        """Send a request and wait for its reply; failures reported before it are raised."""
        with self._lock:
            link = self._open()
            generation = self.generation
            request = self._next_request
            try:
                with quiet():
                    self._next_request += 1
                    message = make(request)
                    if hasattr(message, "work"):
                        self._work += 1
                        message = type(message)(self._work, *_fields_after_work(message))
                    self._wanted.add(request)
                    if into_arena:
                        self._in_arena = request
                    link.queue(message)
                self._pump(link)
                self._await(lambda: request in self._replies, generation)
                reply = self._replies.pop(request)
                if isinstance(message, m.Sync | m.GetRng):  # downloads may be answered early
                    self._settled = self.position
            finally:
                self._wanted.discard(request)
                self._replies.pop(request, None)
            if isinstance(reply, BaseException):
                raise anew(reply)
            return reply

    def _await(self, done: Callable[[], bool], generation: int) -> None:
        """Wait for an answer to what was sent in `generation`; a newer one never gives it."""
        raise_kept()
        self.round_trips += 1
        link = self._open()
        try:
            while not done():
                self._still(link, generation)
                self._pump(link, self.waits.timeout_s())
                if said := self.waits.sentence():
                    self._on_notice(m.Notice(said))
                if self._failures:
                    raise anew(self._failures.pop(0))
            self.waits.over()
            self._still(link, generation)
            if self._failures:
                raise anew(self._failures.pop(0))
        except KeyboardInterrupt:
            self._cancel()
            raise

    def _cancel(self) -> None:
        """Have this cell's works taken back; a second time, while it waits for others, all."""
        self._awaited.clear()
        if self._link is not None:
            with quiet():
                request = self._next_request
                self._next_request += 1
                since = 0 if self._interrupt else self._before_cell
                self._interrupt = request
                self._link.queue(m.Cancel(request, since))
            self._pump(self._link)

    def _still(self, link: Link, generation: int) -> None:
        """Raise if the device that was asked is no longer the one there is."""
        if self._link is not link or self.generation != generation:
            raise self._lost or errors.DeviceLost("The device was lost.")

    def _pump(self, link: Link, timeout_s: float = 0.0) -> None:
        """Send what is queued and take in what is there, waiting up to `timeout_s` for it."""
        try:
            link.flush()
            link.receive(0.0 if link.inbox else timeout_s)
        except errors.DeviceLost as error:
            raise self.lost(error) from None
        except errors.FrameError as error:
            raise self.lost(errors.DeviceLost(f"The broker sent nonsense: {error}")) from None
        while link.inbox:
            with quiet():
                message = link.inbox.popleft()
                _HANDLERS[type(message)](self, message)

    def _on_ack(self, message: m.Ack) -> None:
        if self._link is not None:
            self._link.arena.ring.release(message.arena)

    def _on_learnt(self, message: m.Learnt) -> None:
        if message.work in self._reports:
            self._reports[message.work] = message
            return
        compiled = self._recorder.by_hash.get(message.program)
        if compiled is None:
            return
        self.learnt.take(compiled.plans, message.tensors)

    def _on_failed(self, message: m.Failed) -> None:
        error = from_failure(message, self._place(message.work, message.op), self.explain_memory)
        for buffer in message.buffers:
            if buffer in self.held:  # nobody asks for what was forgotten meanwhile
                self.poisoned[buffer] = error
                self.held.add(buffer, 0)
        self._awaited.forget(message.buffers)
        if message.request is not None:
            self._answer(message.request, error)
        elif message.work in self._reports:
            raise anew(error)
        elif not isinstance(error, errors.WorkCancelled):  # who interrupts knows of it
            self._failures.append(error)

    def tell(self, failure: BaseException) -> bool:
        """Whether this failure waited to be raised; from here on it does not."""
        waiting = len(self._failures)
        self._failures = [each for each in self._failures if each is not failure]
        return len(self._failures) < waiting

    def _place(self, number: int, op: int) -> tuple[str, int] | None:
        """File and line that asked for an op of a work; None if they are not known (any more)."""
        for work, cut in self._works:
            if work == number and op < len(cut.lines):
                code = next((code for at, code in reversed(cut.codes) if at <= op), None)
                line = line_of(code, cut.lines[op]) if code is not None else 0
                return (code.co_filename, line) if code is not None and line else None
        return None

    def _on_value(self, message: m.Value) -> None:
        self._awaited.arrive(message.buffer, message.data)

    def _on_reply(self, message: Any) -> None:
        self._answer(message.request, message)

    def _answer(self, request: int, reply: Any) -> None:
        """Pass on what was answered, or why nothing was, to whoever waits for it."""
        if request == self._in_arena:
            self._in_arena = 0
        if request == self._interrupt:
            self._interrupt = 0
        failed = isinstance(reply, BaseException)
        if request in self._wanted:
            self._replies[request] = self._failures.pop(0) if failed and self._failures else reply
        elif (answered := self._later.pop(request, None)) is not None:
            answered(None if failed else reply)

    def _on_definition_unknown(self, message: m.DefinitionUnknown) -> None:
        compiled = self._recorder.by_hash.get(message.program)
        if compiled is None or self._link is None:
            self._drop(errors.DeviceLost("The broker forgot a program that is needed again."))
            return
        self._link.queue(m.Define(compiled.data))

    def _on_ready(self, message: m.Ready) -> None:
        self.ready = message
        self.on_ready(message)
        self._tells_values = message.device.kind == "cpu"

    def _on_waiting(self, message: m.Waiting) -> None:
        """Said in the cell if it lasts; the wait itself goes on."""
        self.waits.begun(message.waits_for)

    def _on_notice(self, message: m.Notice) -> None:
        """Show a sentence in the cell that runs, or wherever the program's errors go."""
        if sys.stderr is not None:
            sys.stderr.write(f"jgpu: {message.text}\n")

    def _on_resync(self, message: m.Resync) -> None:
        link = self._link
        if link is None:
            return
        link.resync(message.epoch)
        if message.lost:
            text = message.text or "The device was restarted."
            if message.work:
                text += asked_for(self._place(message.work, message.op))
            link.begin_anew()
            self._forget(errors.DeviceLost(text))
        with quiet():
            link.queue(m.Resynced(message.epoch))
        link.flush()

    def _on_refused(self, message: m.Refused) -> None:
        self._drop(errors.DeviceLost(f"The broker ended this session: {message.text}"))
        assert self._lost is not None
        raise self._lost

    # -- connection --------------------------------------------------------------------------

    def _open(self) -> Link:
        if self._forked:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        if self._link is None:
            link = self._connect()
            try:
                with quiet():
                    self._link, self._lost, self.ready = link, None, None
            finally:
                if self._link is not link:
                    link.close()
        link = self._link
        if self.ready is None or self._seeds:
            self._welcome(link)
        return link

    def _welcome(self, link: Link) -> None:
        """Wait until the executor has the session; seed what was seeded before there was one."""
        while self.ready is None:
            self._pump(link, 3600.0)
            self._still(link, self.generation)
        with quiet():
            for index, value in self._seeds.items():
                self._work += 1
                link.queue(m.Seed(self._work, value, index))
            self._seeds.clear()

    def lost(self, error: errors.DeviceLost) -> errors.DeviceLost:
        """The connection ended: everything on the device is gone. Returns the error to raise."""
        with self._lock:
            if self._link is not None:
                self._drop(error)
            return self._lost or error

    def _drop(self, error: errors.DeviceLost) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._forget(error)

    def _forget(self, error: errors.DeviceLost) -> None:
        self.generation += 1
        self.log.clear()
        self._statements = [(self._recorded, code) for _, code in self._statements[-1:]]
        # A new list: buffers of before, which bury themselves later, must not free new ones' ids.
        self.graveyard = []
        self.held.clear()
        self.poisoned.clear()
        self._replies.clear()
        self._in_arena = 0
        self._reports.clear()  # works are numbered anew
        self._failures.clear()
        self._works.clear()
        self._awaited.clear()
        self._tags.clear()
        self._next_buffer = 1
        self._work = self._before_cell = self._interrupt = 0
        self._piece, self.limit = 0, PIECES[0]
        self._iteration_open = False
        later, self._later = self._later, {}
        for answered in later.values():
            answered(None)
        self.why_lost = str(error)
        self._lost = errors.DeviceLost(self.on_lost(self.why_lost))

    def forked(self) -> None:
        """In a forked child: the connection is the parent's; touching the device is an error.

        A child of a process that has not touched the device yet may, and gets a session of its own.
        """
        self._lock = threading.RLock()
        self._forked = self._link is not None or bool(self.log)
        if self._forked:
            self.log.clear()
            self.limit = 1  # the first op that is recorded tells
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """End the session in good order."""
        with self._lock:
            if self._link is not None and not self._forked:
                try:
                    self._link.queue(m.Quit())
                    self._link.flush()
                except errors.DeviceLost:
                    pass
                self._link.close()
                self._link = None


def line_of(code: CodeType, instruction: int) -> int:
    """The source line of an instruction's offset; 0 if it has none."""
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or 0
    return 0


def _fields_after_work(message: Any) -> list[Any]:
    return [getattr(message, name) for name in type(message).__struct_fields__[1:]]


def _probe_op(plan: OpPlan) -> wire.Op:
    def fill(value: Any) -> Any:
        if type(value) is TensorRef:
            return wire.Slot(value.index, value.index)
        return tuple(fill(item) for item in value) if type(value) is tuple else value

    args = tuple(fill(value) for value in plan.args)
    kwargs = {name: fill(value) for name, value in plan.kwargs.items()}
    return wire.Op(plan.info.name, args, kwargs, ())


def _returns_list(plan: OpPlan) -> bool:
    """Whether the number of tensors that are returned is open."""
    return any(str(ret.type) == "List[Tensor]" for ret in plan.info.func._schema.returns)


def _probe_error(kind: str, text: str) -> BaseException:
    import builtins

    found = getattr(builtins, kind, RuntimeError)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        found = RuntimeError
    made: BaseException = found(text)
    return made


_HANDLERS: dict[type, Callable[[ClientSession, Any], None]] = {
    m.Ack: ClientSession._on_ack,
    m.Learnt: ClientSession._on_learnt,
    m.Failed: ClientSession._on_failed,
    m.Downloaded: ClientSession._on_reply,
    m.Synced: ClientSession._on_reply,
    m.Value: ClientSession._on_value,
    m.Probed: ClientSession._on_reply,
    m.Chosen: ClientSession._on_reply,
    m.RngIs: ClientSession._on_reply,
    m.MemoryIs: ClientSession._on_reply,
    m.DefinitionUnknown: ClientSession._on_definition_unknown,
    m.Ready: ClientSession._on_ready,
    m.Waiting: ClientSession._on_waiting,
    m.Notice: ClientSession._on_notice,
    m.Resync: ClientSession._on_resync,
    m.Refused: ClientSession._on_refused,
}
