"""What each message of a client does; on the pump.

Works are put in the session's order; everything else is dealt with at once. A message that breaks
the protocol raises `ProtocolError`, for which the pump ends that session and no other.

Nothing here takes longer than decoding the message did.
"""

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jgpu.broker.executor.admission.definitions import Definitions, Verdict
from jgpu.broker.executor.admission.gate import Gate, RefusedRun
from jgpu.broker.executor.admission.probes import Probes
from jgpu.broker.executor.admission.refusals import Refusals
from jgpu.broker.executor.devices.base import Device
from jgpu.broker.executor.lifecycle import LifePhase
from jgpu.broker.executor.programs import Definition
from jgpu.broker.executor.scheduling.driver import SchedulerDriver
from jgpu.broker.executor.session import ExecutorSession
from jgpu.broker.executor.works.cancel import begin_cancel
from jgpu.broker.executor.works.early import answer_early, last_writer, may_answer_early, may_follow
from jgpu.broker.executor.works.hostonly import FREED_AT_ONCE, FreeWork, RngWork, SyncWork
from jgpu.broker.executor.works.transfers import DownloadWork, UploadWork
from jgpu.errors import ProtocolError
from jgpu.wire import messages
from jgpu.wire.program import program_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from jgpu.broker.executor.works.runs import RunWork

__all__ = ["MessageHandler"]

#: definitions that one session may have been asked for again
_ASKED: Final = 4096


class MessageHandler:
    """Deals with clients' messages."""

    def __init__(
        self,
        device: Device,
        turns: SchedulerDriver,
        definitions: Definitions,
        probes: Probes,
        refusals: Refusals,
    ) -> None:
        self._device = device
        self._turns = turns
        self._definitions = definitions
        self._probes = probes
        self._refusals = refusals
        self._gate = Gate(refusals)
        #: works by the hash of the definition that the client must send again
        self._missing: dict[bytes, list[RunWork]] = {}
        #: by kind of message, what deals with one; `ProtocolError` if it may not be
        self.handlers: dict[type, Callable[[ExecutorSession, Any], None]] = {
            messages.Define: self._define,
            messages.Run: self._run,
            messages.Upload: self._upload,
            messages.Download: self._download,
            messages.Sync: self._sync,
            messages.Seed: lambda s, m: self._accept(s, RngWork(s, m)),
            messages.GetRng: lambda s, m: self._accept(s, RngWork(s, m)),
            messages.SetRng: lambda s, m: self._accept(s, RngWork(s, m)),
            messages.Free: self._free,
            messages.Tag: self._note,
            messages.Probe: probes.ask,
            messages.ChooseAttention: probes.ask,
            messages.ChooseNorm: probes.ask,
            messages.LayOutWeights: probes.ask,
            messages.Memory: self._memory,
            messages.CellStarted: self._cell_started,
            messages.IterationEnded: self._iteration_ended,
            messages.CellEnded: self._cell_ended,
            messages.Loop: lambda s, m: self._turns.loop_told(s, m.left),
            messages.ReportProgress: lambda s, m: s.progress.ask(m.ops),
            messages.Cancel: self._cancel,
            messages.Resynced: self._resynced,
            messages.Quit: self._quit,
        }

    # -- works -------------------------------------------------------------------------------

    def _accept(self, session: ExecutorSession, work: Any) -> None:
        session.accept(work)
        self._turns.offer(session)

    def _upload(self, session: ExecutorSession, message: messages.Upload) -> None:
        if self._turns.short.upload(session, message):
            return
        session.cells.note_made(message.buffer)
        self._accept(session, UploadWork(session, message))

    def _waits(self, session: ExecutorSession, *, ends_iteration: bool) -> None:
        self._gate.waited(session)
        if ends_iteration:
            self._gate.boundary(session)

    def _sync(self, session: ExecutorSession, message: messages.Sync) -> None:
        self._waits(session, ends_iteration=message.ends_iteration)
        self._accept(session, SyncWork(session, message))

    def _download(self, session: ExecutorSession, message: messages.Download) -> None:
        work = DownloadWork(session, message)
        self._waits(session, ends_iteration=message.ends_iteration)
        early = may_answer_early(session)
        writer = last_writer(session, message.buffer) if early else None
        if not early or not may_follow(session, work, writer):
            self._accept(session, work)
            return
        session.queue.count(work)
        answer_early(session, work, writer)
        if message.ends_iteration:
            self._turns.short.catch_up()
            self._turns.boundary(session)

    def _run(self, session: ExecutorSession, message: messages.Run) -> None:
        asked = session.programs.asked
        if message.work in asked:
            # It comes again with its definition; the first one is still here.
            asked.remove(message.work)
            return
        if len(message.free) > FREED_AT_ONCE:
            self._free_in_parts(session, message.free)
            message = replace(message, free=())
        known = None
        if self._gate.is_open(session):
            known = self._definitions.known(message.program, session.owner.identity)
            if message.wanted and session.queue.outstanding:
                self._collect_uploads(session)
            if known is not None and self._turns.short.run(session, message, known):
                self._gate.passed(session, message)
                return
        work = self._gate.work_of(session, message)
        session.accept(work)
        session.cells.note_made(message.first)
        if isinstance(work, RefusedRun):
            self._turns.offer(session)
            return
        work.definition = known or self._definitions.get(message.program, session.owner.identity)
        if work.definition is None:
            self._missing.setdefault(message.program, []).append(work)
            if not self._definitions.pending(message.program):
                asked.add(message.work)
                if len(asked) > _ASKED:
                    raise ProtocolError("This client runs programs that it does not define.")
                session.send(messages.DefinitionUnknown(message.work, message.program))
        self._turns.offer(session)

    def _collect_uploads(self, session: ExecutorSession) -> None:
        """What came just before was done at once: it is over, and a run may go the short way.

        Of a client that will wait for that run, and so sends no more of them now.
        """
        queue = session.queue
        if (
            len(queue.offered) == queue.outstanding
            and all(type(work) is UploadWork for work in queue.offered)
            and self._device.poll_interval_s() == 0.0
        ):
            self._turns.collect()

    def _define(self, session: ExecutorSession, message: messages.Define) -> None:
        held = session.account.held
        if held or self._refusals.of(session.owner.user, program_hash(message.program)):
            return  # not even looked at; runs of it are refused, or ask for it again
        session.programs.begin(len(message.program))
        self._definitions.learn(
            session,
            message.program,
            lambda verdict: self._defined(session, message.program, verdict),
        )

    def _defined(self, session: ExecutorSession, data: bytes, verdict: Verdict) -> None:
        session.programs.end(len(data))
        key = verdict.hash if isinstance(verdict, Definition) else program_hash(data)
        for work in self._missing.pop(key, ()):
            work.definition = verdict
            self._turns.offer(work.session)

    def forget(self, session: ExecutorSession) -> None:
        """The session ends: nothing of it waits for definitions any more."""
        self._gate.forget(session)
        self._probes.forget(session)
        for key in list(self._missing):
            kept = [work for work in self._missing[key] if work.session is not session]
            if kept:
                self._missing[key] = kept
            else:
                del self._missing[key]

    def _free(self, session: ExecutorSession, message: messages.Free) -> None:
        if len(message.buffers) + session.queue.notes_bytes // 8 > FREED_AT_ONCE:
            self._free_in_parts(session, message.buffers)
        else:
            self._note(session, message)

    def _free_in_parts(self, session: ExecutorSession, buffers: tuple[int, ...]) -> None:
        """Free many buffers as works of little time each, so that other sessions' come between."""
        self._turns.short.catch_up()
        for work in FreeWork.of(session, buffers):
            session.queue.accept(work)
        self._turns.offer(session)

    def _note(self, session: ExecutorSession, message: messages.Free | messages.Tag) -> None:
        self._turns.short.catch_up()  # with memory as it was before
        session.queue.note(message)
        self._turns.settle(session)

    # -- at once -----------------------------------------------------------------------------

    def _memory(self, session: ExecutorSession, message: messages.Memory) -> None:
        account, table = session.account, session.table
        if message.reset_peak:
            table.peak = table.used
        free = max(0, min(account.total - account.used, self._turns.free_bytes()))
        session.send(
            messages.MemoryIs(message.request, free, account.total, table.used, table.peak)
        )

    def _cell_started(self, session: ExecutorSession, message: messages.CellStarted) -> None:
        session.cells.begin(message.label, session.queue.next_number - 1)
        self._gate.waited(session)
        self._turns.cell_started(session)

    def _iteration_ended(self, session: ExecutorSession, message: messages.IterationEnded) -> None:
        self._gate.boundary(session)
        self._turns.short.catch_up()
        self._turns.boundary(session)

    def _cell_ended(self, session: ExecutorSession, message: messages.CellEnded) -> None:
        self._turns.short.catch_up()
        session.cells.end()
        self._gate.boundary(session)
        self._turns.cell_ended(session, failed=message.failed)

    def _cancel(self, session: ExecutorSession, message: messages.Cancel) -> None:
        self._gate.boundary(session)
        self._turns.short.catch_up()
        taken = begin_cancel(session, message.request, message.since)
        self._turns.taken_back(session, taken)
        self._turns.settle(session)

    def _resynced(self, session: ExecutorSession, message: messages.Resynced) -> None:
        if not session.lost:
            raise ProtocolError("Nobody asked this client to begin its stream anew.")

    def _quit(self, session: ExecutorSession, message: messages.Quit) -> None:
        session.life.become(LifePhase.ENDING)
