"""The broker's report: devices, lanes, sessions and users, as `jgpu status --json` prints it.

One form for everybody. An executor fills in what it measures of its lanes and sessions, the control
process adds what it knows, as far as the asker may see it, and the command line and the pages read
it. `schema` describes it for programs in other languages.

A reader of any age reads a report of any age (`parts`). Sizes are bytes, times seconds; moments are
seconds since the epoch.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from jgpu.wire.fields import Ids, Name, Natural, Text
from jgpu.wire.reports.parts import ReportPart, decode_json

__all__ = [
    "SOMEBODY",
    "BrokerReport",
    "CulpritReport",
    "DeviceReport",
    "EndReport",
    "IterationTimes",
    "LaneReport",
    "LedgerReport",
    "MeasuresReport",
    "MemoryReport",
    "QuotaReport",
    "QuotasReport",
    "Report",
    "ScopeReport",
    "SessionReport",
    "StandingReport",
    "TimesReport",
    "UserReport",
    "decode",
    "decode_quotas",
    "schema",
]


#: stands for a user whose name the asker may not see
SOMEBODY: Final = "another user"


class BrokerReport(ReportPart, frozen=True):
    """The broker itself."""

    version: Name = ""
    protocol: Natural = 0
    pid: Natural = 0
    socket: Text = ""
    #: started by one person for themselves
    private: bool = False
    #: the user whose report this is
    asker: Name = ""
    #: when the broker began
    started: float = 0.0
    #: the version that the device computes with
    torch: Name = ""
    #: kernels that are there or about to be, whether or not they use the device
    seats: Natural = 0
    max_sessions: Natural = 0
    #: draining: no iteration begins; drained: nothing is under way any more; empty: neither
    drain: Name = ""
    #: requests that were refused since the broker began, by the reason's word; for administrators
    refusals: dict[Name, Natural] = msgspec.field(default_factory=dict)
    #: sessions that are waited for
    drain_waits_for: Ids = ()
    #: what stopping the broker would interrupt, and what would be lost by it
    drain_text: Text = ""


class LaneReport(ReportPart, frozen=True):
    """A stream of the device and the sessions that take turns in it."""

    id: Natural
    capacity_bytes: Natural = 0
    sessions: Ids = ()
    #: the session whose turn it is
    running: Natural | None = None
    #: open, closing, or retired: given up, for what runs in it does not end
    state: Name = "open"
    #: how long it has been at one piece of work
    running_seconds: float = 0.0
    #: since when that is; 0 where it is at nothing
    running_since: float = 0.0
    #: the op that it is at; empty if it is not the asker's
    op: Name = ""


class CulpritReport(ReportPart, frozen=True):
    """Whose work ended an executor; what the asker may not see is None."""

    user: Name
    session: Natural | None = None
    op: Text | None = None
    #: the program's hash, hex
    program: Name | None = None


class TimesReport(ReportPart, frozen=True):
    """How often something took how long; counts only grow."""

    #: upper bounds of the buckets, seconds; the last bucket has none
    bounds: tuple[float, ...] = ()
    #: by bucket, one more than bounds, not added up
    counts: tuple[Natural, ...] = ()
    #: sum of all
    seconds: float = 0.0


class MeasuresReport(ReportPart, frozen=True):
    """What an executor has counted since it began; the next one begins anew."""

    #: times that memory of a session went to the host, or came back, and the bytes
    spills: Natural = 0
    restores: Natural = 0
    spilled_bytes: Natural = 0
    restored_bytes: Natural = 0
    #: how long sessions waited each time before something of them ran
    waits: TimesReport = TimesReport()
    #: device time of iterations, and of single programs
    iterations: TimesReport = TimesReport()
    programs: TimesReport = TimesReport()


class MemoryReport(ReportPart, frozen=True):
    """What all sessions of a device keep, by kind."""

    resident_bytes: Natural = 0
    ephemeral_bytes: Natural = 0
    #: on the host
    spilled_bytes: Natural = 0


class EndReport(ReportPart, frozen=True):
    """How an executor ended."""

    when: float
    how: Text
    culprit: CulpritReport | None = None


class DeviceReport(ReportPart, frozen=True):
    """A device and its executor."""

    name: Text
    #: cpu, cuda or null
    kind: Name
    capacity_bytes: Natural = 0
    #: the scheduling policy
    policy: Name = ""
    lanes: tuple[LaneReport, ...] = ()
    #: starting, ready, restarting, failed, or silent: it does not answer
    state: Name = "ready"
    #: a sentence, if there is something to say
    note: Text = ""
    #: of it, what sessions have on the device; what was moved to the host is not there
    used_bytes: Natural = 0
    #: threads of the host's processor that each lane has
    threads: Natural = 0
    #: programs that are known
    definitions: Natural = 0
    restarts: Natural = 0
    #: the executor's process; only for administrators
    pid: Natural | None = None
    memory: MemoryReport = MemoryReport()
    #: only for administrators
    measures: MeasuresReport = MeasuresReport()
    #: how the executor before this one ended
    last_end: EndReport | None = None


class IterationTimes(ReportPart, frozen=True):
    """Device time of a session's last iterations; 0 before the first."""

    median: float = 0.0
    p95: float = 0.0


class SessionReport(ReportPart, frozen=True):
    """A session; what is the notebook's own is empty for whoever may not see it."""

    id: Natural
    user: Name = ""
    kernel_id: Name = ""
    #: starting, idle, waiting, running, spilled, paused or lost
    state: Name = "starting"
    lane: Natural | None = None
    #: the model: parameters, module buffers, optimizer state; what was moved to the host included
    resident_bytes: Natural = 0
    #: everything else that is kept; what was moved to the host included
    ephemeral_bytes: Natural = 0
    #: of both, what was moved to the host, and comes back by itself
    spilled_bytes: Natural = 0
    #: of this, what is of the model
    spilled_resident_bytes: Natural = 0
    device_seconds: float = 0.0
    iterations: Natural = 0
    iteration_seconds: IterationTimes = IterationTimes()
    #: 1 for whoever comes next; None if it does not wait
    queue_position: Natural | None = None
    #: sessions that have the device before its turn comes, whoever is at it now among them; None
    #: if it does not wait for its turn
    ahead: Natural | None = None
    #: users
    waits_for: tuple[Name, ...] = ()
    #: what it waits for: its turn, memory, a copy of its own memory, the end of a drain, or, beyond
    #: its user's budget, an idle device (turn, memory, copy, drain, budget); empty if it does not
    waits_on: Name = ""
    #: since when it waits; None if it does not
    waits_since: float | None = None
    #: the notebook's path
    label: Text = ""
    cell: Text = ""
    #: device time of the last cells that used the device, oldest first; for their user alone
    cells: dict[Name, float] = msgspec.field(default_factory=dict)
    pid: Natural | None = None
    age_seconds: float = 0.0
    #: when it began
    since: float = 0.0

    @property
    def resident_on_device(self) -> int:
        """Bytes of the model that are on the device; what was moved to the host is not."""
        return self.resident_bytes - self.spilled_resident_bytes

    @property
    def ephemeral_on_device(self) -> int:
        """Bytes of everything else that are on the device."""
        return self.ephemeral_bytes - (self.spilled_bytes - self.spilled_resident_bytes)

    @property
    def bytes_on_device(self) -> int:
        """Bytes of both that are on the device."""
        return self.resident_on_device + self.ephemeral_on_device


class QuotaReport(ReportPart, frozen=True):
    """What counts for a user, from all scopes together; 0 where there is no limit."""

    #: share of device time relative to other users with work
    weight: float = 1.0
    #: bytes of all sessions together
    memory: Natural = 0
    #: bytes of these that may be models and optimizers
    resident: Natural = 0
    #: device time within any period
    device_seconds: float = 0.0
    period: float = 0.0
    sessions: Natural = 0
    #: the most urgent class: interactive, normal or batch
    priority: Name = ""
    #: what happens beyond the device time: warn, throttle or deny
    over_budget: Name = ""


class StandingReport(ReportPart, frozen=True):
    """A user, what they may have, and what they used of it."""

    name: Name
    groups: tuple[Name, ...] = ()
    #: sessions that are open
    sessions: Natural = 0
    weight: float = 1.0
    quota: QuotaReport = QuotaReport()
    #: device time in the period of the budget
    used_in_period: float = 0.0
    #: within the budget, or warned, throttled or denied beyond it
    state: Name = "within"
    #: when new work is taken again
    free_at: float | None = None
    #: a sentence for whoever is beyond their budget
    text: Text = ""


class UserReport(StandingReport, frozen=True):
    """The same, and what they have and had since the broker began."""

    ended_sessions: Natural = 0
    device_seconds: float = 0.0
    resident_bytes: Natural = 0
    ephemeral_bytes: Natural = 0


class LedgerReport(ReportPart, frozen=True):
    """The record of usage; only for administrators."""

    state: Name = ""
    #: a sentence, if something is wrong
    text: Text = ""
    #: the database, without what is secret in its address
    url: Text = ""
    unwritten_rows: Natural = 0
    unwritten_device_seconds: float = 0.0


class Report(ReportPart, frozen=True):
    """Everything at one moment, as one asker may see it."""

    broker: BrokerReport
    devices: tuple[DeviceReport, ...] = ()
    sessions: tuple[SessionReport, ...] = ()
    users: tuple[UserReport, ...] = ()
    ledger: LedgerReport | UnsetType = UNSET


class ScopeReport(ReportPart, frozen=True):
    """What was said of one scope, and where."""

    #: default, group:NAME or user:NAME
    scope: Name
    #: configuration, hub or live
    source: Name
    settings: dict[Name, int | float | Text] = msgspec.field(default_factory=dict)
    #: the moment at which it ends by itself, in seconds since the epoch; 0: it does not
    until: float = 0.0


class QuotasReport(ReportPart, frozen=True):
    """Who may have and who used how much, as `jgpu quota list --json` prints it."""

    scopes: tuple[ScopeReport, ...] = ()
    users: tuple[StandingReport, ...] = ()
    ledger: LedgerReport | UnsetType = UNSET
    #: what an administrator should know: what is there beyond a limit, groups that do not exist
    notes: tuple[Text, ...] = ()


def decode(data: bytes, where: object = "?") -> Report:
    """Read a report of this or another version; raises `ProtocolError` for what is none."""
    return decode_json(data, Report, "report", where)


def decode_quotas(data: bytes, where: object = "?") -> QuotasReport:
    """Read an answer about quotas; raises `ProtocolError` for what is none."""
    return decode_json(data, QuotasReport, "report", where)


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a report."""
    return msgspec.json.schema(Report)
