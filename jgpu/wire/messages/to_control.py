"""What clients and administrators ask of the control process."""

from typing import Annotated, Literal

import msgspec

from jgpu.wire import limits
from jgpu.wire.fields import Name, Natural, Text
from jgpu.wire.messages.parts import Message, Runtime

__all__ = [
    "AskEvents",
    "AskQuotas",
    "AskSockets",
    "AskStatus",
    "AskStop",
    "AskUsage",
    "Drain",
    "Evict",
    "Hello",
    "HubQuota",
    "LeaveSeat",
    "MakeSocket",
    "NameUser",
    "RemoveSocket",
    "SetQuota",
    "TakeSeat",
    "UsePolicy",
    "Watch",
]


class Hello(Message, frozen=True):
    """Opens a session. Carries the arena's descriptor. Reply: Welcome or Refused, then Ready.

    `user` is believed at the administrators' socket and from a private broker's owner, `pid` only
    where the socket gives none.
    `ticket` is the seat that the kernel's provisioner took; `label` the notebook's path.
    """

    protocol: int
    runtime: Runtime
    pid: Natural
    ticket: Name = ""
    user: Name = ""
    label: Text = ""
    kernel_id: Name = ""
    priority: Name = ""
    arena: Natural = limits.ARENA_BYTES


class TakeSeat(Message, frozen=True):
    """A kernel is about to start. Reply: SeatTaken or Refused."""

    protocol: int
    kernel_id: Name
    label: Text = ""
    user: Name = ""


class LeaveSeat(Message, frozen=True):
    """The kernel is gone for good (`restart` false), or its tensors are. Reply: SeatTaken."""

    ticket: Name
    restart: bool = False


class AskStatus(Message, frozen=True):
    """Reply: StatusIs."""


class Watch(Message, frozen=True):
    """What AskStatus asks for, and then what changes of it. Reply: StatusIs, then StatusChanged.

    Until either end closes; the client sends nothing more. Refused where too many watch.
    """


class AskStop(Message, frozen=True):
    """Ends the broker; only from its own uid or root. Reply: Stopping."""


class AskQuotas(Message, frozen=True):
    """Who may have and who used how much. Reply: QuotasAre, with what the asker may see.

    `user`: this one alone; Refused if there is none, or if it is another and the asker may not.
    """

    user: Name = ""


class SetQuota(Message, frozen=True):
    """Changes what a scope ("default", "group:NAME", "user:NAME") says; administrators only.

    `settings`: fields and values as people write them, "" to take out what was set live; without
    any, everything of the scope is taken out. `new`: the name needs not be known. `until`: the
    moment, in seconds since the epoch, at which it ends by itself; 0 for good. `trial`: nothing
    changes, whatever the reply. `by`: the user on whose behalf it is asked, for the record, if
    this one may speak for others. Reply: QuotasAre or Refused, and then nothing has changed.
    """

    scope: Name
    settings: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=16)]
    new: bool = False
    until: float = 0.0
    trial: bool = False
    by: Name = ""


class HubQuota(Message, frozen=True):
    """What a hub says of one of its groups, in place of what it said before; administrators only.

    Below what is set live, above the configuration; without settings it says nothing any more.
    Reply: Done, or Refused, and then nothing has changed.
    """

    group: Name
    settings: Annotated[tuple[tuple[Name, Name], ...], msgspec.Meta(max_length=16)] = ()


class Evict(Message, frozen=True):
    """Have a session's memory go to the host at its next boundary, its model among it or not.

    From its own user or an administrator; comes back by itself with the session's next work.
    `by`: as in SetQuota. Reply: Done or Refused. Also an order to the executor, without a reply.
    """

    session: Natural
    resident: bool = True
    by: Name = ""


class UsePolicy(Message, frozen=True):
    """Another scheduling policy decides from now on; administrators only. Reply: Done or Refused.

    `by`: as in SetQuota. Also an order to the executor, without a reply.
    """

    policy: Name
    by: Name = ""


class Drain(Message, frozen=True):
    """No iteration begins from now on, or does again; administrators only. Reply: Done or Refused.

    `by`: as in SetQuota. Also an order to the executor, without a reply.
    """

    on: bool = True
    by: Name = ""


class AskEvents(Message, frozen=True):
    """What happened, the newest first, as far as it concerns the asker. Reply: EventsAre.

    `before`: only what has a lower number; 0 for the newest. `user`: what concerns this one alone.
    """

    before: Natural = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_EVENTS)] = 100
    user: Name = ""


class AskUsage(Message, frozen=True):
    """Device time from `since` until `until` by steps, and by "user" or "group". Reply: UsageIs.

    In seconds since the epoch, and of a step. Others' only for administrators.
    """

    since: float
    until: float
    step: Annotated[float, msgspec.Meta(ge=limits.LEAST_STEP_S)]
    by: Literal["user", "group"] = "user"


class MakeSocket(Message, frozen=True):
    """A socket for one server of a hub, whose user all are that come by it; administrators only.

    Reply: SocketIs or Refused. The same again, with other groups or not, gives the same socket.
    """

    server: Name
    user: Name
    groups: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_GROUPS)] = ()


class RemoveSocket(Message, frozen=True):
    """That server has ended; administrators only. Reply: Done, whether it had one, or Refused."""

    server: Name


class AskSockets(Message, frozen=True):
    """Which servers have a socket; administrators only. Reply: SocketsAre or Refused."""


class NameUser(Message, frozen=True):
    """Whose uid it is, by a hub's names; administrators only. Reply: Done or Refused.

    Without `user` it has the host's name again.
    """

    uid: Natural
    user: Name = ""
    groups: Annotated[tuple[Name, ...], msgspec.Meta(max_length=limits.MAX_GROUPS)] = ()
