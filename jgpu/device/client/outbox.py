"""Send recorded ops as runs, and tags, frees and seeds between them, all in one order.

Cuts the log into runs at waits, at boundaries and when a piece is full, numbers works and buffers,
and names with each run the buffers that Python has freed. Callers hold the session's lock.

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

#: Works between two reads of the executor's messages while the client does not wait.
_LISTEN_EVERY = 8
#: Buffers that one message frees: few, for the executor hears other sessions between two messages.
_FREED_AT_ONCE = 2048
#: Works whose notebook lines are kept to explain a failure.
_KEPT_WORKS = 1024


class Outbox:
    """Numbers works in order, and queues what leaves with the next one."""

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
        #: counts ops that were sent and are not done
        self.ahead = RunAhead()
        #: runs were sent, and not that their iteration ended
        self._iteration_open = False
        #: resident buffers to report to the executor
        self._tags: list[int] = []
        #: seeds by generator, from before there was a connection
        self._seeds: dict[int, int] = {}

    def open(self) -> Transport:
        """Return the link; send seeds that were set before there was one."""
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
        """Send the recorded ops as one run; return its work number, 0 if there were none.

        Without `send` it is queued, to leave together with the request that follows, unless it
        pushes values: then no request may follow. Ops from the entry `but` on stay in the log. With
        `report` the run requests a report, and `report` is called with the number before anything
        is sent.
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
        """Call `change`, which may set a switch; recorded ops run under the switches before it.

        No signal handler runs between the two, so waits come before or after both. The switch is
        set without a broker, too, because a `finally` that resets it must not fail.
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
        raise_kept()  # on this line, after the switch is set
        return made

    def _change_unsent(self, change: Callable[[], Any], before: Flags) -> Any:
        """Call `change`; drop recorded ops if they could only run under the switches before it.

        There is no broker to send them to.
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
            self._queue_tags(link)  # an idle session must not count its state as kept
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
        """Queue the ops recorded before `but`, in several runs if one would be too large."""
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
        """Return the file and line that recorded an op of a work; None if they are not known."""
        for work, cut in self.runs:
            if work == number and op < len(cut.lines):
                code = next((code for at, code in reversed(cut.codes) if at <= op), None)
                line = line_of(code, cut.lines[op]) if code is not None else 0
                return (code.co_filename, line) if code is not None and line else None
        return None

    # -- tags, frees and seeds ---------------------------------------------------------------

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
        """Exchange two storages at the executor, after all recorded ops."""
        self.cut()
        with quiet():
            first.exchange(second)
            if first.resident:
                self._tags.append(first.id)

    def release(self) -> None:
        """Report buffers that Python has freed to the broker now."""
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
        """Send a message if there is a connection; never open one."""
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
        """Reset after the device was lost. Numbers start again; seeds stay for the next device."""
        self.runs.clear()
        self._tags.clear()
        self.ahead.forget()
        self.work = self.before_cell = 0
        self._iteration_open = False
