"""The sessions' descriptors: kept as long as a session lives, handed to each executor in turn.

The duplicate of a client's descriptor is what lets a session outlive its executor; it is never
read here. Since it also keeps the connection open, it is shut down when the session ends.

Invariant: every descriptor of a session is closed when the session ends.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.executors.culprits import Culprits
from jgpu.broker.control.executors.endings import End
from jgpu.broker.control.executors.overseer import Overseer
from jgpu.broker.control.executors.strikes import Strikes
from jgpu.broker.control.executors.supervisor import ExecutorState, Supervisor
from jgpu.broker.control.executors.watch import ProcessWatch
from jgpu.broker.control.listening.handshake import Visit, check_arena, close_all, reply
from jgpu.broker.control.listening.identity import Identity, clean_text
from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.registry import Registry, SessionRecord
from jgpu.broker.control.runtimes import check_protocol, check_runtime
from jgpu.errors import BrokerRefused, JgpuError, VersionMismatch
from jgpu.wire import limits
from jgpu.wire.framing import FrameWriter
from jgpu.wire.messages import (
    Adopt,
    AskReport,
    Detach,
    Drain,
    Evict,
    ExecutorNotice,
    Follow,
    Hello,
    Refused,
    ReportIs,
    Runtime,
    SessionEnded,
    SessionEnding,
    Spilled,
    UsePolicy,
    Welcome,
    WentThrough,
)
from jgpu.wire.sizes import short_size

__all__ = ["Sessions"]

_LOG = logging.getLogger("jgpu.broker")
#: So long an executor may take to report.
_REPORT_TIMEOUT_S: Final = 1.0
#: A notebook's path is cut to this many characters.
_LABEL_LENGTH: Final = 1024


@dataclass(slots=True)
class _Line:
    """What one session holds in this process."""

    connection: socket.socket
    arena: int
    arena_bytes: int
    token: bytes
    runtime: Runtime
    watch: ProcessWatch | None = None

    def close(self) -> None:
        if self.watch is not None:
            self.watch.stop()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        close_all((self.arena,))


class Sessions:
    """Opens, adopts, ends; the supervisor's events come here."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        desk: QuotaService,
        unusable: Callable[[str], None],
    ) -> None:
        self._registry = registry
        self._desk = desk
        self._unusable = unusable
        self.supervisor = Supervisor(settings, self)
        strikes = Strikes(
            settings.user_crash_limit, settings.user_crash_window_s, settings.user_crash_pause_s
        )
        #: whose work ended executors
        self.culprits = Culprits(registry, strikes)
        self.overseer = Overseer(settings.patience, self.supervisor, registry, lambda: self._report)
        desk.send, desk.held = self.supervisor.send, self.culprits.held
        #: the policy that was chosen live, if any
        self._policy: UsePolicy | None = None
        #: no iteration is to begin
        self.draining = False
        #: session number -> its descriptors; the same keys as `registry.sessions`
        self._lines: dict[int, _Line] = {}
        self._requests = itertools.count(1)
        #: called whenever something may be different in the report
        self.on_change: Callable[[], None] = lambda: None
        #: told of each session whose memory went to the host: its user, and what happened
        self.on_spill: Callable[[str, str], None] = lambda user, text: None
        #: somebody watches: executors report by themselves
        self._followed = False
        self._report: ReportIs | None = None
        #: when a report was asked for last to be shown
        self._shown_at = float("-inf")
        self._asked: asyncio.Future[None] | None = None

    def close(self) -> None:
        """End all sessions, for good."""
        for number in list(self._lines):
            self._drop(number, 0.0)

    # -- a session's life --------------------------------------------------------------------

    def admit(self, visit: Visit, user: str, hello: Hello, identity: Identity) -> int:
        """The new session's number; it owns connection and descriptors of `visit` from here on.

        Raises a `JgpuError` before it owns anything.
        """
        check_protocol(hello.protocol)
        check_runtime(hello.runtime, self.supervisor.runtime)
        if self.supervisor.state is ExecutorState.FAILED:
            raise BrokerRefused(f"The shared device is out of order. {self.supervisor.note}")
        priority = self._desk.priority(user, hello.priority)
        arena = check_arena(visit.descriptors, hello.arena)
        session = self._registry.admit(
            visit.peer,
            user,
            ticket=hello.ticket,
            kernel_id=clean_text(hello.kernel_id, limits.MAX_NAME),
            label=clean_text(hello.label, _LABEL_LENGTH),
            now=time.monotonic(),
            identity=identity,
            arena=hello.arena,
            priority=priority,
            most=self._desk.quota(user).sessions,
        )
        visit.handed_over = True
        number, token = session.number, secrets.token_bytes(16)
        line = _Line(visit.connection, arena, hello.arena, token, hello.runtime)
        self._lines[number] = line
        line.watch = ProcessWatch.of_peer(
            visit.connection, visit.peer.pid, lambda: self.end(number, "The process ended.")
        )
        label = clean_text(session.label, 60) or "-"
        _LOG.info("Session %d: %s, pid %d, %s.", number, user, visit.peer.pid, label)
        return number

    async def welcome(self, number: int) -> None:
        """Tell the client that it is admitted, then hand it over to the executor."""
        session, line = self._registry.sessions[number], self._lines[number]
        try:
            await reply(line.connection, Welcome(number, session.user, line.token))
        except BaseException as error:
            self._drop(number, 0.0)
            if isinstance(error, OSError):
                return  # gone already
            raise
        if number in self._lines and self.supervisor.state is ExecutorState.READY:
            self._adopt(session)

    def end(self, number: int, text: str) -> None:
        """Free the session's memory as soon as can be."""
        if self._registry.end(number):
            self.supervisor.send(Detach(number, text))
        elif number not in self._registry.sessions:
            self._forget(number)

    def evict(self, order: Evict) -> None:
        """Have a session's memory go to the host; `BrokerRefused` while nobody can be told to."""
        if self.supervisor.is_stuck:
            raise BrokerRefused("The device's process does not answer. Try again in a moment.")
        self.supervisor.send(order)

    def use_policy(self, policy: str) -> None:
        """Have another policy decide, in the executor of the day and in those that follow."""
        self._policy = UsePolicy(policy)
        self.supervisor.send(self._policy)

    def drain(self, *, on: bool) -> None:
        """Have no iteration begin, in this executor and those that follow, or have them again."""
        self.draining = on
        self.supervisor.send(Drain(on))

    def follow(self, on: bool) -> None:
        """Have the executor report by itself whenever something changes, or not any more."""
        self._followed = on
        self.supervisor.send(Follow(on))

    def _adopt(self, session: SessionRecord) -> None:
        line = self._lines[session.number]
        user, story = self._desk.before_adoption(session), self.culprits.story(session.number)
        order = Adopt(
            session=session.number,
            user=session.user,
            label=session.label,
            arena=line.arena_bytes,
            token=line.token,
            weight=user.weight,
            limit=user.limit,
            epoch=session.adoptions,
            priority=session.priority,
            lost=story.text[: limits.MAX_TEXT],
            lost_work=story.work,
            lost_op=story.op,
            identity=str(session.identity),
        )
        try:
            check_runtime(line.runtime, self.supervisor.runtime)
            self.supervisor.send(user)
            self.supervisor.send(order, (line.connection.fileno(), line.arena))
        except VersionMismatch as error:
            self._dismiss(session, error)
        except OSError as error:
            self._dismiss(session, BrokerRefused(f"The broker is out of descriptors ({error})."))
        else:
            self._registry.adopted(session.number)
            self._desk.after_adoption(session)
        self.on_change()

    def _dismiss(self, session: SessionRecord, error: JgpuError) -> None:
        """End a session that no executor has, with a sentence if the stream can still carry it."""
        line = self._lines[session.number]
        if session.adoptions == 0:
            refused = Refused(error.reason, clean_text(str(error), limits.MAX_TEXT))
            with contextlib.suppress(OSError):
                line.connection.send(FrameWriter().encode(refused, 0), socket.MSG_NOSIGNAL)
        self._drop(session.number, 0.0)

    def _drop(self, number: int, device_seconds: float) -> None:
        self._desk.session_gone(number)
        self._registry.ended(number, device_seconds)
        self._forget(number)
        self.on_change()

    def _forget(self, number: int) -> None:
        self.culprits.forget(number)
        line = self._lines.pop(number, None)
        if line is not None:
            line.close()

    # -- what the supervisor tells -----------------------------------------------------------

    def executor_ready(self) -> None:
        """Everybody who waited gets the new executor, in order of arrival."""
        if self._policy is not None:
            self.supervisor.send(self._policy)
        if self.draining:
            self.supervisor.send(Drain())
        if self._followed:
            self.supervisor.send(Follow())
        self.supervisor.send(self.culprits.refusals())
        self.supervisor.send(self.culprits.trials())
        for session in self._registry.waiting():
            self._adopt(session)
        self.on_change()

    def executor_ended(self, end: End) -> bool:
        """Find out whose work it was; whether one user is to blame."""
        return self.culprits.ended(end)

    def executor_lost(self) -> None:
        """Sessions stay, without their tensors, and wait for the next executor."""
        for measured in self._report.sessions if self._report else ():
            if measured.id in self._registry.sessions:
                self._registry.book(measured.id, measured.device_seconds)
        self._report, self._shown_at, self._asked = None, float("-inf"), None
        self._desk.executor_gone()
        for session in self._registry.executor_gone():
            self._desk.session_gone(session.number)
            self._forget(session.number)
        self.on_change()

    def executor_failed(self, sentence: str) -> None:
        """No executor for a while: whoever waits is told so."""
        self.executor_lost()
        error = BrokerRefused(f"The shared device is out of order. {sentence}")
        for session in self._registry.waiting():
            self._dismiss(session, error)
        if self.supervisor.facts is None:
            self._unusable(sentence)

    def executor_said(self, notice: ExecutorNotice) -> None:
        """A session ended, or a report came."""
        if not (isinstance(notice, ReportIs) and _is_old(notice, self._report)):
            self.on_change()
        if isinstance(notice, SessionEnded):
            _LOG.info("Session %d ended. %s", notice.session, notice.text)
            self._desk.session_ended(notice.session, notice.device_seconds, self._device)
            self._drop(notice.session, notice.device_seconds)
        elif isinstance(notice, SessionEnding):
            self._registry.end(notice.session)
        elif isinstance(notice, Spilled):
            self._spilled(notice)
        elif isinstance(notice, WentThrough):
            if self.culprits.went_through(notice.user, notice.program):
                self.supervisor.send(self.culprits.trials())
        elif isinstance(notice, ReportIs):
            self._report = notice
            if not notice.request:
                return  # to show that it lives, or because somebody watches
            self._desk.measured(notice, self._device)
            if self._asked is not None and not self._asked.done():
                self._asked.set_result(None)

    def _spilled(self, notice: Spilled) -> None:
        session = self._registry.sessions.get(notice.session)
        if session is not None:
            left = (
                f"{short_size(notice.left)} stay on the device" if notice.left else "all there was"
            )
            self.on_spill(
                session.user,
                f"{short_size(notice.nbytes)} of session {session.number} went to the host, "
                f"{left}; they come back with its next work.",
            )

    @property
    def _device(self) -> str:
        facts = self.supervisor.facts
        return facts.name if facts is not None else self.supervisor.device

    # -- reports -----------------------------------------------------------------------------

    @property
    def last_report(self) -> ReportIs | None:
        """What the executor of the day said last, if it did."""
        return self._report

    async def latest_report(self) -> ReportIs | None:
        """The executor's report of now; the last one if it does not answer."""
        if self.supervisor.state is not ExecutorState.READY:
            return self._report
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().create_future()
            self.supervisor.send(AskReport(next(self._requests)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_TIMEOUT_S):
                await asyncio.shield(self._asked)
        return self._report

    async def shown_report(self) -> ReportIs | None:
        """The same for whoever looks, as often as they like: `REPORT_AGE_S` old at most."""
        if time.monotonic() - self._shown_at >= limits.REPORT_AGE_S:
            await self.latest_report()
            self._shown_at = time.monotonic()
        return self._report


def _is_old(report: ReportIs, before: ReportIs | None) -> bool:
    """Whether a report says what the one before said."""
    return before is not None and replace(report, request=before.request) == before
