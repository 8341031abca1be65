"""The short way of a run: from its message to the values that its client waits for.

An input that is not there, a number that does not fit, memory that is not certain: all that is left
to the usual way. An op that fails in its midst makes a work of the run, which takes over what came
of it.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.memory.hostbytes import bytes_of, quickest
from jgpu.broker.executor.programs import Buffer, Definition, Masks, Outcome, RunContext
from jgpu.broker.executor.scheduling.shortway.way import ShortWay
from jgpu.broker.executor.works.course import Passed
from jgpu.broker.executor.works.runs import RunWork
from jgpu.broker.flightpage import Kind
from jgpu.wire import limits, messages

if TYPE_CHECKING:
    import torch

    from jgpu.broker.executor.devices.base import Port
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.tallies import Tallies
    from jgpu.broker.executor.works.base import Work

__all__ = ["ShortRuns"]

_PROGRAM: Final = Kind.PROGRAM  # plain: looking into an enumeration takes time


class ShortRuns:
    """Does such runs."""

    def __init__(self, way: ShortWay, tallies: "Tallies", works: "dict[int, Work]") -> None:
        """`works` are the driver's."""
        self._way = way
        self._device = way.device
        self._tallies = tallies
        self._works = works
        self._bytes_of = quickest(bytes_of)
        #: what runs: its session, its first fresh buffer, and the wanted slots that were told
        self._session: ExecutorSession | None = None
        self._first = 0
        self._told: list[int] = []

    def run(
        self, session: "ExecutorSession", message: messages.Run, definition: Definition
    ) -> bool:
        """Whether the run was done; else nothing has happened."""
        way = self._way
        waited_for = bool(message.wanted)
        if session.queue.outstanding or not way.untold.make_way(session, waited_for=waited_for):
            return False
        if (
            not way.is_clear(session, message.work)
            or message.report
            or message.program not in session.programs.told
        ):
            return False
        masks = definition.straight(message.live, message.dead, message.wanted)
        if masks is None:
            return False
        most = way.forecasts[session.number].made_bytes + masks.transient
        port = way.port(session, definition.predicted_s or 0.0, masks.transient, most)
        if port is None:
            return False
        generators = definition.plan.generators
        if generators and not all(map(session.generators.__contains__, generators)):
            return False
        buffers = definition.fitting(session.table.buffers, message.inputs, message.params)
        if buffers is None:
            return False
        self._do(session, message, definition, masks, buffers, port)
        return True

    def _do(
        self,
        session: "ExecutorSession",
        message: messages.Run,
        definition: Definition,
        masks: Masks,
        buffers: Sequence[Buffer],
        port: "Port",
    ) -> None:
        began, begin = self._way.clock(), perf_counter()
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
        took_s = perf_counter() - begin
        self._put_down(session, message, definition, masks, buffers, began, took_s)

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
        buffers: Sequence[Buffer],
        began: float,
        took_s: float,
    ) -> None:
        """What its having been offered, launched and finished would have left."""
        way, ends, standing = self._way, message.ends_iteration, session.standing
        self._session = None
        predicted_s = definition.predicted_s or 0.0
        way.put_down(
            session, Passed(message.work, ends), message.first, took_s, definition, buffers
        )
        standing.riders, standing.at_boundary = 0, ends
        standing.iterations += ends
        self._device.note_at_once(standing.lane)
        self._tallies.programs.note(took_s)
        definition.observe(took_s)
        live = way.forecasts[session.number].note_run(message, masks, definition.surplus_bytes)
        claim = live if live <= session.account.capacity else 0
        way.untold.note(session, predicted_s, claim, began, took_s, ends=ends)

    def _hand_over(
        self,
        session: "ExecutorSession",
        message: messages.Run,
        definition: Definition,
        outcome: Outcome,
        context: RunContext,
    ) -> None:
        """Not all went as ever: have a work go on with what came of it."""
        way, teller = self._way, self._way.teller
        teller.catch_up()
        work = RunWork(session, message)
        work.definition, work.begun = definition, (outcome, context)
        work.told.update(self._told)
        self._session = None
        session.accept(work)
        session.cells.note_made(message.first)
        session.queue.offer_next()
        work.key = next(teller.keys)
        work.claim = way.forecasts[session.number].live_bytes(work)
        self._works[work.key] = work
        teller.run_now(session, work, way.feed)
