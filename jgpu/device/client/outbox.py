"""What is recorded goes out: runs, tags, frees, seeds, all in one order.

Cuts the log into runs at waits, at boundaries and when a piece is full, numbers works and buffers,
and says with each run what Python has forgotten. Whoever calls has the session's lock.

Invariant: numbers are given and messages queued in one order, and never torn by an interrupt
(`interrupts.quiet`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jgpu import errors
from jgpu.device import flags
from jgpu.device.client.buffers import ClientBuffers
from jgpu.device.client.connection import BrokerConnection
from jgpu.device.client.notebook.runahead import REPORTED_OPS, RunAhead
from jgpu.device.client.oplog import OpLog, line_of
from jgpu.device.client.transport import Transport
from jgpu.device.hooks.guard import raise_kept
from jgpu.device.interrupts import quiet
from jgpu.device.recording.cuts.recorder import Cut, ProgramRecorder
from jgpu.device.recording.cuts.taking import Entry
from jgpu.device.tensor import BufferHandle
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire.program import Flags

__all__ = ["Outbox"]

#: What the executor says unasked is taken in after so many works, if nobody waits before.
_LISTEN_EVERY = 8
#: Buffers that one message frees: few, for the executor hears other sessions between two messages.
_FREED_AT_ONCE = 2048
#: Works whose notebook lines are kept to explain a failure.
_KEPT_WORKS = 1024


class Outbox:
    """The order of works, and what waits to go out with the next one."""

    def __init__(
        self,
        connection: BrokerConnection,
        log: OpLog,
        buffers: ClientBuffers,
        on_draw: Callable[[], None],
    ) -> None:
        self._connection = connection
        self.log = log
        self.buffers = buffers
        #: called when a run draws random numbers
        self._on_draw = on_draw
        self.recorder = ProgramRecorder()
        #: number of the last work
        self.work = 0
        #: the last work before the cell that runs; 0 in a script
        self.before_cell = 0
        #: the last runs, by number
        self.runs: deque[tuple[int, Cut]] = deque(maxlen=_KEPT_WORKS)
        #: how much of what was sent is not done yet
        self.ahead = RunAhead()
        #: runs were sent, and not that their iteration ended
        self._iteration_open = False
        #: resident buffers that the executor was not told of
        self._tags: list[int] = []
        #: seeds by generator, from before there was a connection
        self._seeds: dict[int, int] = {}

    def open(self) -> Transport:
        """The link; seeds what was seeded before there was one."""
        link = self._connection.open()
        if self._seeds:
            with quiet():
                for index, value in self._seeds.items():
                    link.queue(m.Seed(self.next_work(), value, index))
                self._seeds.clear()
        return link

    def next_work(self) -> int:
        """The number of the work that is queued next."""
        self.work += 1
        return self.work

    @property
    def position(self) -> tuple[int, int, int]:
        """Changes whenever something was recorded or sent."""
        return self._connection.generation, self.work, len(self.log.entries)

    # -- runs --------------------------------------------------------------------------------

    def cut(
        self,
        *,
        ends_iteration: bool = False,
        send: bool = True,
        but: Entry | None = None,
        report: Callable[[int], Any] | None = None,
    ) -> int:
        """Send what was recorded as one run; returns its work number, 0 if there was nothing.

        Without `send` it is queued, to leave together with the request that follows, unless it
        tells values unasked: then there may be none. What was recorded from the entry `but` on
        stays. The executor is asked for a report where `report`
        is given, which is called with the number before anything is sent.
        """
        entries = self.log.entries
        if not entries or entries[0] is but:
            if ends_iteration:
                self._end_iteration(send=send)
            return 0
        raise_kept()
        link = self.open()
        sent = True
        try:
            with quiet():
                work, tells = self._queue_runs(link, ends_iteration, but, report)
                if send or tells:
                    sent = link.send_now()
        except errors.DeviceLost as error:
            raise self._connection.lost(error) from None
        if not sent or work % _LISTEN_EVERY == 0:
            self._connection.pump(link)
        return work

    def cut_around(self, change: Callable[[], Any]) -> Any:
        """What a call returns that may set a switch; what is recorded runs as they were before.

        No handler of a signal comes between the two, so all that may wait comes before or behind.
        The switch is set where there is no broker, too: whoever sets it back must not fail at that.
        """
        if not self.log.entries:
            return change()
        before, sent = flags.current(), True
        try:
            link = self.open()
        except errors.JgpuError:
            if self._connection.link is not None:
                raise
            made = self._change_unsent(change, before)
            if flags.current() is before:
                return made
            raise
        try:
            with quiet():
                try:
                    made = change()
                finally:
                    if self.log.entries and flags.current() is not before:
                        with flags.recorded_under(before):
                            self._queue_runs(link, False, None, None)
                        sent = link.send_now()
        except errors.DeviceLost as error:
            raise self._connection.lost(error) from None
        if not sent:
            self._connection.pump(link)
        raise_kept()  # told on this line, once the switch is as the line says
        return made

    def _change_unsent(self, change: Callable[[], Any], before: Flags) -> Any:
        """What the call returns; what was recorded goes if it could only run under other switches.

        It never left, for there is nowhere to send it to.
        """
        with quiet():
            made = change()
            if flags.current() is not before:
                text = "The broker could not be reached before one of torch's switches changed."
                self._connection.forget(errors.DeviceLost(text))
        return made

    def _end_iteration(self, *, send: bool) -> None:
        """The last piece was full just now, and did not know that it was the last."""
        self.log.first_piece()
        link = self._connection.link
        if link is None or not (self._iteration_open or self._tags):
            return
        with quiet():
            self._queue_tags(link)  # whoever rests from here on must not count its state as kept
            if self._iteration_open:
                self._iteration_open = False
                link.queue(m.IterationEnded())
        if send:
            self._connection.pump(link)

    def _queue_runs(
        self,
        link: Transport,
        ends_iteration: bool,
        but: Entry | None,
        report: Callable[[int], Any] | None,
    ) -> tuple[int, bool]:
        """Queue what was recorded before `but`, in several runs if one would be too large."""
        count = len(self.log.entries) if but is None else self.log.place(but)
        told = False
        while True:
            cut = self._cut_log(count)
            count -= len(cut.lines)
            if not count:
                work, tells = self._queue_run(link, cut, ends_iteration, report)
                return work, tells or told
            _, tells = self._queue_run(link, cut, False, None)
            told = told or tells

    def _queue_run(
        self,
        link: Transport,
        cut: Cut,
        ends_iteration: bool,
        report: Callable[[int], Any] | None,
    ) -> tuple[int, bool]:
        log, buffers, compiled = self.log, self.buffers, cut.compiled
        self._iteration_open = not ends_iteration
        if ends_iteration:
            log.first_piece()
        else:
            log.next_piece()
        if compiled.draws:
            self._on_draw()
        if compiled.defined != self._connection.generation:
            link.queue(m.Define(compiled.data))
            compiled.defined = self._connection.generation
        buffers.settle_outputs(cut)
        work = self.work = self.work + 1
        if report is not None:
            report(work)
        self.runs.append((work, cut))
        if self._tags:
            self._queue_tags(link)
        live, dead, free = buffers.bury(cut)
        if len(free) > _FREED_AT_ONCE:
            self._queue_frees(link, free)
            free = ()
        buffers.held.on_change()
        wanted = buffers.reads.of_run(cut, live)
        link.queue(
            m.Run(
                work, compiled.hash, cut.inputs, cut.first, live, dead, cut.params,
                free, ends_iteration, report is not None, wanted,
            )
        )  # fmt: skip
        if self.ahead.sent(work, len(cut.lines)):
            link.queue(m.ReportProgress(REPORTED_OPS))
        return work, bool(wanted)

    def _cut_log(self, count: int) -> Cut:
        """The first entries as a run, at most `count`. The log keeps their buffers no longer."""
        log = self.log
        self.recorder.set_flags(flags.current())
        cut = self.recorder.take(log.entries, count)
        cut.codes = log.taken(len(cut.lines))
        return cut

    def living_bytes(self, unsent: Iterable[BufferHandle]) -> int:
        """Bytes of all buffers that are not forgotten, those among them that were not sent yet."""
        graveyard = self.buffers.graveyard
        waiting = {buffer for buffer in unsent if buffer.graveyard is graveyard}
        waiting.update(made for entry in self.log.entries[:] for made in entry[3])
        return self.buffers.living_bytes(waiting)

    def place_of(self, number: int, op: int) -> tuple[str, int] | None:
        """File and line that asked for an op of a work; None if they are not known (any more)."""
        for work, cut in self.runs:
            if work == number and op < len(cut.lines):
                code = next((code for at, code in reversed(cut.codes) if at <= op), None)
                line = line_of(code, cut.lines[op]) if code is not None else 0
                return (code.co_filename, line) if code is not None and line else None
        return None

    # -- what goes beside them ---------------------------------------------------------------

    def tag_resident(self, handles: Sequence[BufferHandle]) -> None:
        """These buffers, which the executor knows, are the model's or its optimizer's."""
        with quiet():
            for buffer in handles:
                buffer.resident = True
                if buffer.graveyard is self.buffers.graveyard and buffer.id:
                    self._tags.append(buffer.id)

    def _queue_tags(self, link: Transport) -> None:
        if self._tags:
            tags, self._tags = tuple(self._tags), []
            for at in range(0, len(tags), limits.MAX_SLOTS):
                link.queue(m.Tag(tags[at : at + limits.MAX_SLOTS], m.RESIDENT))

    def exchange(self, first: BufferHandle, second: BufferHandle) -> None:
        """Two storages change places at the executor; what was recorded before is not concerned."""
        self.cut()
        with quiet():
            first.exchange(second)
            if first.resident:
                self._tags.append(first.id)

    def release(self) -> None:
        """Tell the broker at once what Python has forgotten."""
        link = self._connection.link
        if link is None or not self.buffers.graveyard:
            return
        with quiet():
            buried = self.buffers.forgotten()
            self.buffers.held.on_change()
            self._queue_frees(link, buried)
        self._connection.pump(link)

    @staticmethod
    def _queue_frees(link: Transport, buried: tuple[int, ...]) -> None:
        for at in range(0, len(buried), _FREED_AT_ONCE):
            link.queue(m.Free(buried[at : at + _FREED_AT_ONCE]))

    def send_ordered(self, make: Callable[[int], m.ClientMessage]) -> None:
        """Queue a message that takes its place in the order of works (seeds, random states)."""
        self.cut()
        link = self.open()
        with quiet():
            link.queue(make(self.next_work()))
        self._connection.pump(link)

    def notify(self, message: m.ClientMessage) -> None:
        """Tell the broker something if there is a connection; never opens one."""
        link = self._connection.link
        if link is None:
            return
        with quiet():
            self._queue_tags(link)
            link.queue(message)
        self._connection.pump(link)

    def seed(self, index: int, value: int) -> None:
        """Seed a generator in the order of works; opens no connection for that alone."""
        if self._connection.link is None and not self.log.entries:
            self._seeds[index] = value
            return
        self.send_ordered(lambda work: m.Seed(work, value, index))

    def define_again(self, program: bytes) -> None:
        """The broker forgot a program that was sent."""
        compiled = self.recorder.by_hash.get(program)
        link = self._connection.link
        if compiled is None or link is None:
            text = "The broker forgot a program that is needed again."
            self._connection.drop(errors.DeviceLost(text))
            return
        link.queue(m.Define(compiled.data))

    def forget(self) -> None:
        """The device is gone; the next one numbers anew. Seeds stay, for whichever comes."""
        self.runs.clear()
        self._tags.clear()
        self.ahead.forget()
        self.work = self.before_cell = 0
        self._iteration_open = False
