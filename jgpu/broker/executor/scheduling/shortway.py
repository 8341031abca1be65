"""The short way of a run that is known, brief and alone: done as its message is read.

Where nobody has anything to run, a session's run of a program that is known and brief by experience
(see `telling`) needs no place in an order, and nobody to stop it: the pump does it, from its
message to the values that its client waits for, and puts everything down behind that. Whatever is
not so, or not as ever (an input that is not there, a number that does not fit, memory that is not
certain), is left to the usual way, of which nothing has happened then. An op that fails in its
midst makes a work of the run, which takes over what came of it.

Invariant: what is known of a run that went this way, anywhere, is what is known of one that went
the other (`tests/broker/executor/test_shortway.py` compares them).
"""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.memory.hostbytes import quickest
from jgpu.broker.executor.memory.movement import MovementState
from jgpu.broker.executor.programs import Buffer, Definition, Masks, Outcome, RunContext
from jgpu.broker.executor.works.course import PassedRun
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.flightpage import Kind
from jgpu.errors import ProgramError
from jgpu.sched import Core, events
from jgpu.wire import limits, messages

if TYPE_CHECKING:
    import torch

    from jgpu.broker.executor.devices.base import Device, Port
    from jgpu.broker.executor.scheduling.feed import LaneFeed
    from jgpu.broker.executor.scheduling.forecast import Forecast
    from jgpu.broker.executor.scheduling.telling import CoreTeller
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.tallies import Tallies
    from jgpu.broker.executor.works.base import Work

__all__ = ["ShortWay"]

_STILL: Final = MovementState.STILL
_PROGRAM: Final = Kind.PROGRAM  # plain: looking into an enumeration takes time


class ShortWay:
    """Does such runs, and tells the core of them afterwards."""

    def __init__(
        self,
        device: "Device",
        core: Core,
        clock: Callable[[], float],
        teller: "CoreTeller",
        feed: "LaneFeed",
        tallies: "Tallies",
        works: "dict[int, Work]",
        forecasts: "dict[int, Forecast]",
        measured: "Callable[[ExecutorSession], events.MemoryMeasured | None]",
    ) -> None:
        """`works` and `forecasts` are the driver's; `measured` is what is new of memory."""
        self._device = device
        self._core = core
        self._clock = clock
        self._teller = teller
        self._feed = feed
        self._tallies = tallies
        self._works = works
        self._forecasts = forecasts
        self._measured = measured
        self._bytes_of = quickest()
        #: what runs: its session, its first fresh buffer, and the wanted slots that were told
        self._session: ExecutorSession | None = None
        self._first = 0
        self._told: list[int] = []
        #: what ran and the core has not heard of: its program, its number for the core, the bytes
        #: that it claims, what it was predicted to take, when it began, and what it took
        self._definition: Definition | None = None
        self._work, self._claim, self._ends = 0, 0, False
        self._predicted_s = self._began = self._took_s = 0.0

    def run(
        self, session: "ExecutorSession", message: messages.Run, definition: Definition
    ) -> bool:
        """Whether the run was done; else nothing has happened."""
        queue, table = session.queue, session.table
        if (
            queue.outstanding
            or queue.notes
            or queue.cancel_requests
            or message.work != queue.next_number
            or message.report
            or message.program not in session.programs.told
            or table.resident_away
            or table.kept_away
            or table.aside
            or session.movement.state is not _STILL
            or session.life.is_over
            or session.is_full
            or session.faults is not None
            or self._device.allocate is not None
            or not self._feed.is_idle
            or self._teller.untold is not None
        ):
            return False
        masks = definition.masks(message.live, message.dead, message.wanted)
        if not definition.is_straight(masks):
            return False
        standing, account = session.standing, session.account
        port = self._device.port_at_once(standing.lane, definition.predicted_s or 0.0)
        if port is None or not (masks.transient <= 0 or account.fits(session, masks.transient)):
            return False
        # Whether the core would start it at once.
        most = self._forecasts[session.number].most_live_bytes(masks)
        if self._core.would_start(session.number, most) != standing.lane:
            return False
        if (buffers := _given(session, message, definition)) is None:
            return False
        self._do(session, message, definition, masks, buffers, port)
        return True

    def _do(
        self,
        session: "ExecutorSession",
        message: messages.Run,
        definition: Definition,
        masks: Masks,
        buffers: list[Buffer],
        port: "Port",
    ) -> None:
        began, begin = self._clock(), perf_counter()
        flight = port.flight
        flight.begin(
            session.number, message.work, _PROGRAM, message.program, definition.names,
            definition.ops,
        )  # fmt: skip
        table = session.table
        if message.free and (dropped := table.drop_all_of(message.free)):
            port.retire(dropped)
        if (used := table.resident + table.kept + masks.transient) > table.peak:
            table.peak = used
        context = RunContext(
            self._device.torch_device, session.generators, message.work, mark=flight.op, masks=masks
        )
        if message.wanted:
            self._session, self._first = session, message.first
            self._told.clear()
            context.wanted, context.tell = message.wanted, self._tell
        try:
            outcome = definition.run_straight(buffers, message.params, masks, context)
        except BaseException:  # a mistake of ours, for which the session ends
            flight.rest()
            raise
        if outcome.exact is None:
            self._hand_over(session, message, definition, outcome, context)
            return
        replaced = table.add_made(outcome.made(message.first))
        if replaced:
            port.retire(replaced)
        if masks.dead:
            session.drop([message.inputs[k] for k in masks.dead], port)
        if len(self._told) < len(message.wanted):
            self._own_up(message)
        flight.rest()
        self._took_s = perf_counter() - begin
        self._put_down(session, message, definition, masks, buffers)
        self._began = began

    # -- what the client waits for -----------------------------------------------------------

    def _tell(self, slot: int, made: "torch.Tensor") -> None:
        """Say what a wanted slot holds; see `early.tell`."""
        session = self._session
        if session is None or made.device != self._device.torch_device:
            return
        data = self._bytes_of(made, limits.WANTED_BYTES)
        if data is not None:
            session.connection.send(messages.Value(self._first + slot, data))
            self._told.append(slot)

    def _own_up(self, message: messages.Run) -> None:
        """Wanted slots that were not told in the midst of the run: now, if that can be."""
        assert self._session is not None
        for slot in message.wanted:
            if slot in self._told:
                continue
            buffer = self._session.table.buffers.get(message.first + slot)
            if buffer is not None and buffer.base is not None:
                self._tell(slot, buffer.base)
            if slot not in self._told:
                self._session.connection.send(messages.Value(message.first + slot, b""))

    # -- what is known of it afterwards ------------------------------------------------------

    def _put_down(
        self,
        session: "ExecutorSession",
        message: messages.Run,
        definition: Definition,
        masks: Masks,
        buffers: list[Buffer],
    ) -> None:
        """What its having been offered, launched and finished would have left."""
        number, ends = message.work, message.ends_iteration
        session.queue.next_number = number + 1
        cells = session.cells
        if cells.first_buffer is None:
            cells.note_made(message.first)
        cells.times.count(number, self._took_s)
        session.course.passed(PassedRun(number, ends), definition, buffers)
        standing, rest = session.standing, session.rest
        standing.riders, standing.at_boundary = 0, ends
        standing.iterations += ends
        rest.is_told, rest.asked, rest.since = False, None, self._clock()
        session.wait.users = ()
        self._device.note_at_once(standing.lane)
        live = self._forecasts[session.number].note_run(message, masks, definition.surplus_bytes)
        self._claim, self._ends = live if live <= session.account.capacity else 0, ends
        self._work, self._predicted_s = next(self._teller.keys), definition.predicted_s or 0.0
        self._session, self._definition = session, definition
        self._teller.untold = self._tell_core

    def _tell_core(self) -> None:
        """The core hears of it, as of something that arrived when it began."""
        session, definition, took_s = self._session, self._definition, self._took_s
        assert session is not None
        assert definition is not None
        self._session = self._definition = None
        self._tallies.programs.note(took_s)
        definition.observe(took_s)
        measured = self._measured(session)
        number, work, lane = session.number, self._work, session.standing.lane
        if measured is None and self._core.has_turn(number):
            ran = events.WorkRan(
                number, work, self._predicted_s, self._claim, self._ends, lane,
                self._clock() - self._began, took_s,
            )  # fmt: skip
            self._teller.tell_ran(ran, self._began)
            return
        segment = (events.Segment(self._predicted_s, self._claim),)
        arrival = events.WorkArrived(number, work, segment, self._ends)
        epoch = self._teller.tell_of(arrival, self._began, lane)
        if measured is not None:
            self._teller.tell(measured)
        self._teller.tell(events.SegmentsFinished(lane, epoch, work, 1, took_s))

    def _hand_over(
        self,
        session: "ExecutorSession",
        message: messages.Run,
        definition: Definition,
        outcome: Outcome,
        context: RunContext,
    ) -> None:
        """Not all went as ever: have a work go on with what came of it."""
        work = RunWork(session, message)
        work.definition, work.begun = definition, (outcome, context)
        work.told.update(self._told)
        self._session = None
        session.accept(work)
        session.cells.note_made(message.first)
        session.queue.offer_next()
        work.key = next(self._teller.keys)
        work.claim = self._forecasts[session.number].live_bytes(work)
        self._works[work.key] = work
        self._teller.run_now(session, work, self._feed)


def _given(
    session: "ExecutorSession", message: messages.Run, definition: Definition
) -> list[Buffer] | None:
    """Its inputs, if they are there, and fit."""
    found = session.table.buffers
    try:
        buffers = [*map(found.__getitem__, message.inputs)]
        generators = definition.plan.generators
        if generators and not all(map(session.generators.__contains__, generators)):
            return None
        return buffers if definition.accepts(buffers, message.params) else None
    except (KeyError, ProgramError):
        return None
