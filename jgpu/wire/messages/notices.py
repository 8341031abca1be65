"""What an executor tells the control process."""

from jgpu.wire.fields import Ids, Name, Natural, Text
from jgpu.wire.messages.parts import DeviceFacts, Hash, Message, Runtime
from jgpu.wire.reports.report import LaneReport, MeasuresReport, SessionReport

__all__ = [
    "ExecutorFailed",
    "ExecutorReady",
    "ReportIs",
    "SessionEnded",
    "SessionEnding",
    "Spilled",
    "WentThrough",
]


class ExecutorReady(Message, frozen=True):
    """The device works: its self-test passed. `runtime` is what clients' runtimes must fit."""

    device: DeviceFacts
    pid: Natural
    runtime: Runtime | None = None


class ExecutorFailed(Message, frozen=True):
    """The device cannot be used; one sentence says why. The executor ends."""

    text: Text


class SessionEnding(Message, frozen=True):
    """The session has ended, and something of it runs; SessionEnded follows when that is over."""

    session: Natural


class SessionEnded(Message, frozen=True):
    """The session's memory is free. `text` is empty for a good end."""

    session: Natural
    device_seconds: float
    text: Text = ""


class Spilled(Message, frozen=True):
    """So many bytes of a session went to the host; so many are on the device still."""

    session: Natural
    nbytes: Natural
    left: Natural = 0


class WentThrough(Message, frozen=True):
    """A program, or what is probed, has gone through alone under this user."""

    user: Name
    program: Hash


class ReportIs(Message, frozen=True):
    """The executor's lanes and sessions at this moment; `used` in bytes of the device."""

    request: Natural
    lanes: tuple[LaneReport, ...]
    sessions: tuple[SessionReport, ...]
    used: Natural
    policy: Name
    definitions: Natural = 0
    #: no lane is open, and somebody waits for memory that retired lanes hold
    cut_off: bool = False
    #: no iteration begins
    draining: bool = False
    #: sessions with an iteration, or a copy of their memory, under way
    under_way: Ids = ()
    measures: MeasuresReport = MeasuresReport()
