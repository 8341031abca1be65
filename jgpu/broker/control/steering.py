"""Answers whoever asks about the broker or steers it: reports, quotas, evictions, policy, a hub.

One reply for each request. What others may be told and do follows from the door that they came by;
each change, and each attempt, goes on record.
"""

from typing import TypeAlias

import msgspec

from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.listening.handshake import Visit
from jgpu.broker.control.listening.identity import Identities
from jgpu.broker.control.quotas.desk import QuotaService
from jgpu.broker.control.quotas.requests import QuotaRequests, change_text
from jgpu.broker.control.quotas.scopes import Scope
from jgpu.broker.control.quotas.spec import FIELDS
from jgpu.broker.control.registry import Registry
from jgpu.broker.control.reports.audit import Audit
from jgpu.broker.control.reports.records import Records
from jgpu.broker.control.reports.report import Viewer
from jgpu.broker.control.reports.reporting import Reporter
from jgpu.broker.control.servers import Servers
from jgpu.broker.control.sessions import Sessions
from jgpu.errors import BrokerRefused
from jgpu.sched import load_policy
from jgpu.wire import limits
from jgpu.wire.messages import (
    AskEvents,
    AskQuotas,
    AskSockets,
    AskStatus,
    AskStop,
    AskUsage,
    ControlReply,
    Done,
    Drain,
    EventsAre,
    Evict,
    HubQuota,
    MakeSocket,
    NameUser,
    QuotasAre,
    RemoveSocket,
    SetQuota,
    SocketIs,
    SocketsAre,
    StatusIs,
    Stopping,
    UsageIs,
    UsePolicy,
)

__all__ = ["QUESTIONS", "Steering", "SteeringMessage"]

SteeringMessage: TypeAlias = (
    AskStatus
    | AskEvents
    | AskUsage
    | AskQuotas
    | SetQuota
    | Evict
    | UsePolicy
    | Drain
    | MakeSocket
    | RemoveSocket
    | AskSockets
    | NameUser
    | HubQuota
    | AskStop
)
#: requests that change nothing
QUESTIONS = AskStatus | AskEvents | AskUsage | AskQuotas | AskSockets


class Steering:
    """The requests of one broker; they raise errors whose sentence is for the asker."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        identities: Identities,
        sessions: Sessions,
        desk: QuotaService,
        servers: Servers,
        audit: Audit,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._identities = identities
        self._sessions = sessions
        self._desk = desk
        self._servers = servers
        self._audit = audit
        self._quotas = QuotaRequests(desk, registry)
        self._records = Records(desk)
        self.reporter = Reporter(settings, registry, sessions, desk, self._quotas, audit)

    def viewer(self, visit: Visit, by: str = "") -> Viewer:
        """Who asks, by the door that they came by; `by`: on whose behalf, if they may say so."""
        user = self._identities.user_of(visit.peer, visit.door, by)
        return Viewer(user, visit.door.administers(visit.peer.uid))

    async def answer(self, visit: Visit, message: SteeringMessage) -> ControlReply:
        """The reply; what it says is done by then, or on its way."""
        try:
            return await self._answer(visit, message)
        finally:
            if isinstance(message, MakeSocket | RemoveSocket | NameUser):
                self.reporter.forget()

    async def _answer(self, visit: Visit, message: SteeringMessage) -> ControlReply:
        if isinstance(message, AskStatus):
            report = await self.reporter.asked(self.viewer(visit))
            return StatusIs(msgspec.json.encode(report))
        if isinstance(message, AskEvents):
            events = await self._records.events(message, self.viewer(visit))
            return EventsAre(msgspec.json.encode(events))
        if isinstance(message, AskUsage):
            if message.until > self._desk.now:  # what is over needs no executor to say more
                await self._desk.count_all(self._sessions.latest_report)
            usage = await self._records.usage(message, self.viewer(visit))
            return UsageIs(msgspec.json.encode(usage))
        if isinstance(message, AskQuotas | SetQuota):
            return await self._quota(visit, message)
        if isinstance(message, Evict):
            return self._evict(visit, message)
        if isinstance(message, UsePolicy):
            return self._use_policy(visit, message)
        if isinstance(message, Drain):
            return self._drain(visit, message)
        if isinstance(message, AskStop):
            self._check_administrator(visit, "stop the broker")
            self._audit.said(visit, "stop", "Had the broker stop.")
            return Stopping()
        self._check_administrator(visit, "say who a hub's users are")
        return await self._hub(visit, message)

    @property
    def _way_in(self) -> str:
        """Where administrators are heard."""
        path, group = self._settings.admin_socket, self._settings.admin_group
        if path is None:
            return "It is its owner's."
        who = f"root and members of the group {group}" if group else "root"
        return f"They speak to {path}, which is open to {who}."

    def _check_administrator(self, visit: Visit, what: str) -> None:
        if not visit.door.administers(visit.peer.uid):
            raise BrokerRefused(f"Only an administrator may {what}. {self._way_in}")

    def _evict(self, visit: Visit, message: Evict) -> Done:
        viewer = self.viewer(visit)
        session = self._registry.sessions.get(message.session)
        if session is None or not (viewer.administrator or session.user == viewer.user):
            whose = "" if viewer.administrator else " of yours"
            raise BrokerRefused(
                f"There is no session {message.session}{whose}; `jgpu status` lists them."
            )
        self._sessions.evict(message)
        what = "Its memory, the model included," if message.resident else "What is not its model"
        said = f"Asked for session {message.session} to give up "
        said += "its memory." if message.resident else "what is not its model."
        self._audit.said(visit, "evict", said, about=session.user, by=message.by)
        return Done(
            f"{what} goes to the host at the session's next boundary, and comes back with its "
            "next work."
        )

    def _use_policy(self, visit: Visit, message: UsePolicy) -> Done:
        self._check_administrator(visit, "change the policy")
        load_policy(message.policy)
        self._sessions.use_policy(message.policy)
        said = f"The policy is {message.policy} from now on, until the broker ends."
        self._audit.said(visit, "policy", said, by=message.by)
        return Done(said)

    def _drain(self, visit: Visit, message: Drain) -> Done:
        self._check_administrator(visit, "drain the device")
        if self._sessions.draining == message.on:
            return Done(
                "It is being drained already." if message.on else "It is not being drained."
            )
        self._sessions.drain(on=message.on)
        said = (
            "No iteration begins from now on. Those under way go on to their end; cells that wait "
            "are told why."
            if message.on
            else "The device is not drained any more: whoever waits goes on."
        )
        self._audit.said(visit, "drain", said, by=message.by)
        return Done(said)

    async def _quota(self, visit: Visit, message: AskQuotas | SetQuota) -> QuotasAre:
        await self._desk.count_all(self._sessions.latest_report)
        if isinstance(message, AskQuotas):
            report = await self._quotas.list(message, self.viewer(visit))
        else:
            report = await self._quotas.change(message, self.viewer(visit, message.by))
            if message.trial:
                return QuotasAre(msgspec.json.encode(report))
            about = message.scope.strip().removeprefix("user:")
            said = f"Set: {change_text(message)}."
            self._audit.said(visit, "quota", said, about=about, by=message.by)
        return QuotasAre(msgspec.json.encode(report))

    async def _hub(
        self,
        visit: Visit,
        message: MakeSocket | RemoveSocket | AskSockets | NameUser | HubQuota,
    ) -> SocketIs | SocketsAre | Done:
        """What a hub says of its users and their servers."""
        if isinstance(message, AskSockets):
            return SocketsAre(self._servers.names)
        if isinstance(message, MakeSocket):
            path = await self._servers.make(message.server, message.user, message.groups)
            said = f"The server {message.server} has the socket {path}."
            self._audit.said(visit, "socket", said, about=message.user)
            return SocketIs(str(path))
        if isinstance(message, RemoveSocket):
            user = await self._servers.remove(message.server)
            if user:
                said = f"The socket of the server {message.server} is gone."
                self._audit.said(visit, "socket", said, about=user)
            return Done("The socket is gone." if user else "There was none.")
        if isinstance(message, HubQuota):
            what = ", ".join(f"{name}={value}" for name, value in message.settings)
            said = f"Of group:{message.group} the hub says: {what or 'nothing'}."
            if self._servers.quota(message.group, dict(message.settings)):
                await self._desk.count_all(self._sessions.latest_report)
                await self._desk.changed()
                self._audit.said(visit, "quota", said, about=f"group:{message.group}")
                over = self._quotas.excess(Scope("group", message.group), FIELDS)
                said = " ".join([said, *over])[: limits.MAX_TEXT]
            return Done(said)
        self._servers.name(message.uid, message.user, message.groups)
        said = f"uid {message.uid} is {self._identities.name(message.uid)}."
        self._audit.said(visit, "name", said, about=message.user)
        return Done(said)
