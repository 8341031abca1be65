"""The works of a session: what runs in order, in a lane, when its turn comes.

A work is launched and finished by the lane that it was given to; on `cpu` that is a worker thread,
on `cuda` the pump. It touches its session's buffers, generators, arena and reply stream, which no
other thread touches meanwhile, and nothing of the pump's.

Invariant: replies, failures among them, leave in the order of the works.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from jgpu.broker.executor.devices.base import Port
from jgpu.broker.executor.programs import Failure
from jgpu.broker.executor.works.states import LaneProgress, WorkProgress
from jgpu.broker.flightpage import Kind
from jgpu.errors import ProtocolError
from jgpu.wire import limits, messages

if TYPE_CHECKING:
    from jgpu.broker.executor.programs.running.notes import ValueNote
    from jgpu.broker.executor.session import ExecutorSession
    from jgpu.broker.executor.works.early import EarlyDownload

__all__ = ["LEAST_S", "Paused", "ShortOfMemory", "Work", "report_failure"]

#: what a work takes that computes nothing, in seconds
LEAST_S: Final = 5e-6
#: buffers named in one `Failed`
_IDS: Final = limits.MAX_SLOTS
# Plain, for looking into an enumeration takes time.
_RECEIVED: Final = WorkProgress.RECEIVED
_DUE: Final = LaneProgress.DUE
_BEGUN: Final = LaneProgress.BEGUN
_HALTED: Final = LaneProgress.HALTED
_PAUSED: Final = LaneProgress.PAUSED
_PUT_OFF: Final = LaneProgress.PUT_OFF
_SKIPPED: Final = LaneProgress.SKIPPED
_AWAITING: Final = frozenset({_DUE, _HALTED, _PAUSED, _PUT_OFF})


class Paused(Exception):
    """The port was told to put the job aside; nothing more is launched of the work for now."""


class ShortOfMemory(Exception):
    """A work in its midst did not get so many bytes (a lower bound); it can go on later."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


def report_failure(
    session: "ExecutorSession", failure: Failure, buffers: Iterable[int], request: int | None = None
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
    #: bytes that the scheduler was told it needs
    claim = 0
    #: it could never fit as a whole: the scheduler was told that it needs none
    in_parts = False
    #: whether its number is the client's, and no other work has it
    is_numbered = True
    #: what it is, on the flight page
    kind = Kind.OTHER
    #: ops of its program, once it was launched
    ops = 0
    #: when the scheduler was told of it, by the host's monotonic clock; 0 without a trace
    ready_ns = 0

    def __init__(self, session: "ExecutorSession", number: int, *, ends_iteration: bool) -> None:
        self.session = session
        #: the client's number for it
        self.number = number
        #: the scheduler's number for it, unique in this executor
        self.key = 0
        self.ends_iteration = ends_iteration
        self.state = _RECEIVED
        #: `Free` and `Tag` that came before it
        self.before: list[messages.Free | messages.Tag] = []
        self.measured_s = 0.0
        self.over_ns = 0
        #: it runs behind another work of the session, and the scheduler does not know it
        self.rides = False
        #: the client broke the protocol with this work; the sentence
        self.violation: str | None = None
        #: whether its session was at a boundary when it was launched
        self.began_at_boundary = True
        #: what a lane has done of it
        self.progress = _DUE
        #: an interrupt took it back; a lane that has it skips it (`course`)
        self.taken = False
        #: bytes that it did not get; above 0 exactly while it is HALTED
        self.lacking = 0
        #: nobody could make room for it: what does not get its memory fails
        self.last_try = False
        #: seconds that it took before it had to wait
        self.earlier_s = 0.0
        #: nothing of it is left to do
        self.over = False
        #: downloads that are answered when it is over (`early`)
        self.followers: deque[EarlyDownload] = deque()

    @property
    def ready(self) -> bool:
        """Whether the scheduler may be told of it."""
        return True

    def predicted_s(self) -> float:
        """Seconds that it will hold its lane; 0 if unknown."""
        return LEAST_S

    def known_s(self) -> float:
        """The same; 0 unless it did the very same before."""
        return self.predicted_s()

    def launch(self, port: Port) -> None:
        """Do it, or enqueue it on the device."""
        session = self.session
        course = session.course
        if course.halted is not None:
            self.progress = _PUT_OFF
            return
        if session.life.is_over or not course.begin(self):
            self.progress = _SKIPPED
            return
        self.progress = _BEGUN
        try:
            self.note(port)
            if self.before:
                session.settle(self.before, port)
            if session.faults is not None:
                session.faults.begin(self, port)
            self.do(port)
            if self.followers and session.device.launches_ahead:
                for download in self.followers:
                    download.begin(port)
            if session.faults is not None:
                session.faults.launched(self, port)
        except Paused:
            self.progress = _PAUSED
        except ShortOfMemory as short:
            self.lacking, self.progress, course.halted = short.nbytes, _HALTED, self
        except ProtocolError as error:
            self.violate(error)
        finally:
            course.end()

    def note(self, port: Port) -> None:
        """Say on the flight page what begins here."""
        port.flight.begin(self.session.number, self.number, self.kind)

    @property
    def waits(self) -> bool:
        """Whether it has to be launched again."""
        progress = self.progress
        return progress is _HALTED or progress is _PUT_OFF

    @property
    def awaits_launch(self) -> bool:
        """Whether ops of it are still to be launched."""
        return not self.over and self.progress in _AWAITING

    def launch_again(self) -> None:
        """It waits no longer: a lane is to go on with it."""
        self.lacking, self.progress = 0, _DUE

    def violate(self, error: ProtocolError) -> None:
        """Its client breaks the protocol with it. Any thread."""
        self.violation = str(error)
        self.session.life.violate()

    def finish(self) -> None:
        """The device is through with it, unless it waits."""
        if self.progress is _HALTED or self.progress is _PUT_OFF:  # it waits
            return
        if self.taken:  # who takes it back tells of it
            self.over = True
            self._settle_faults()
            return
        if not self.session.course.begin_reply(self):
            self.over = True
            return
        try:
            if self.session.faults is not None:
                self._settle_faults()
            if self.progress is not _SKIPPED and self.violation is None:
                self.reply()
            self.over = True
            if self.followers:  # as `answer_followers` asks
                self.answer_followers()
        finally:
            self.session.course.end()

    def _settle_faults(self) -> None:
        """Tell of the wrong values that were noted until here."""
        session, faults = self.session, self.session.faults
        if faults is None or session.life.is_over:
            return
        for failure, buffers in faults.settle(self, session.table):
            report_failure(session, failure, buffers)
        if session.queue.launched <= 1:
            session.device.discard(faults.drop())

    def answer_followers(self) -> None:
        """It is over: answer the downloads that waited for it. Any thread."""
        self.over = True
        while self.followers:  # who adds one looks at `over` afterwards
            try:
                download = self.followers.popleft()
            except IndexError:
                return
            try:
                download.answer()
            except ProtocolError as error:
                self.violate(error)

    def frees(self) -> set[int]:
        """Numbers of the buffers that go before anything of it runs."""
        if not self.before:
            return set()
        notes = [note.buffers for note in self.before if isinstance(note, messages.Free)]
        return set().union(*notes)

    def may_write(self, buffer: int) -> bool:
        """Whether it may write the buffer of that number."""
        return False

    def touches(self) -> Iterable[int]:
        """Numbers of the buffers that it reads, writes or makes."""
        return ()

    #: whether somebody waits for it, or an iteration ends with it: notes of wrong values are read
    reads_notes = False

    def spread(
        self, tainted: dict[int, Failure], wrong: Mapping[int, "ValueNote"]
    ) -> list[Failure]:
        """Add to the buffers that a failure spoiled, by number, those that this work spoiled.

        `wrong`: by op, what was noted of its values. Returns the failures that began here.
        """
        return []

    def do(self, port: Port) -> None:
        """The work itself; a `ProtocolError` ends the session."""
        raise NotImplementedError

    def forget(self) -> None:
        """It is not gone on with: drop what it holds in its midst."""

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

    def validate(self) -> None:
        """Check what must always hold of a work that no lane has."""
        assert self.progress is _DUE
        assert not self.lacking
        assert not self.over
        assert not self.rides or self.state is WorkProgress.OFFERED
