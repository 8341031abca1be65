"""Every table that a client can grow has an owner, a bound, and a test that grows it.

Found by reading the code (`containers`): each dictionary, set, list, queue, memo and cached
function that outlives a call, in the broker, the scheduler and the wire. (The kernel's own side has
one client, its notebook; what grows there is that process's.) A table that is missing in the
lists below fails, and so does an entry without a table.

`BOUNDED` can be filled by clients' messages: owner, bound, and the test that exceeds the bound.
`OWNED` hold a few entries of an object that is bounded, and are freed with it. `FIXED` cannot be
grown by a client. Each group has its reason.
"""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest
from containers import containers

ROOT = Path(__file__).parents[1]
PACKAGES = ("jgpu.broker", "jgpu.sched", "jgpu.wire")
#: they have no clients
WITHOUT_CLIENTS = ("jgpu.sched.simulate", "jgpu.broker.executor.devices.fake")


class Bounded(NamedTuple):
    owner: str
    bound: str
    #: file and name of the test that grows it
    grown: str


CONTROL, EXECUTOR, PROGRAMS = "jgpu.broker.control.", "jgpu.broker.executor.", (
    "jgpu.broker.executor.programs."
)  # fmt: skip
REGISTRY = "tests/broker/control/test_registry.py::"
SHARED = "tests/broker/programs/test_programs_shared.py::"
GROWTH = "tests/broker/executor/test_growth.py::"
CELLS = "tests/broker/executor/test_celltimes.py::"
SHORT_WAY = "tests/broker/executor/test_shortway.py::"
CONTROL_GROWTH = "tests/broker/control/test_control_growth.py::"
SCHED = "tests/sched/test_scheduler_growth.py::"

BOUNDED = {
    # -- both processes
    "jgpu.broker.logs.Repetitions._kinds": Bounded(
        "the log", "512 kinds of lines",
        "tests/broker/test_logs.py::test_kinds_without_end_are_bounded",
    ),
    # -- the control process
    CONTROL + "registry.Registry.seats": Bounded(
        "identity", "max_user_seats, four times max_sessions in all",
        REGISTRY + "test_whoever_takes_all_seats_that_they_can_leaves_seats_to_others",
    ),
    CONTROL + "registry.Registry.sessions": Bounded(
        "identity", "max_user_sessions; of those that are ending twice as many",
        REGISTRY + "test_sessions_whose_ends_take_long_are_not_opened_without_end",
    ),
    CONTROL + "registry.Registry.usage": Bounded(
        "user", "4,096 users",
        REGISTRY + "test_settled_use_is_remembered_of_the_last_users",
    ),
    CONTROL + "server.Broker._unanswered": Bounded(
        "identity", "max_user_connections, eight times as many in all",
        "tests/broker/control/test_control_shares.py::"
        "test_whoever_has_too_many_connections_is_told_so_in_a_sentence",
    ),
    CONTROL + "reports.reporting.Reporter._stands": Bounded(
        "user", "8,192 users",
        "tests/broker/control/test_control_reporting.py::"
        "test_where_users_stand_is_remembered_of_so_many",
    ),
    CONTROL + "reports.audit.Audit._counts": Bounded(
        "identity and kind", "1,024", "tests/broker/control/test_audit.py::"
        "test_identities_that_are_counted_are_few",
    ),
    CONTROL + "quotas.ledger.charges.UsageLedger._events": Bounded(
        "identity and kind, 20 a minute, 600 in all, until written", "10,000 events",
        "tests/broker/control/test_audit.py::"
        "test_events_that_could_not_be_written_are_few_and_wait_for_the_next_run",
    ),
    CONTROL + "reports.watchers.Watchers._watchers": Bounded(
        "identity", "16, and 64 in all",
        "tests/broker/control/test_control_watching.py::"
        "test_so_many_may_watch_and_no_more",
    ),
    CONTROL + "listening.identity.Identities._names": Bounded(
        "uid", "4,096 names",
        "tests/broker/control/test_control_parts.py::"
        "test_names_are_remembered_of_those_who_connected_last",
    ),
    CONTROL + "quotas.groups.Groups._found": Bounded(
        "user", "4,096 users", CONTROL_GROWTH + "test_groups_are_remembered_of_the_last_users"
    ),
    CONTROL + "quotas.ledger.usage.UsageHistory._windows": Bounded(
        "user", "users with usage within the horizon",
        CONTROL_GROWTH + "test_windows_go_with_the_usage_that_they_show",
    ),
    CONTROL + "quotas.ledger.charges.UsageLedger._charges": Bounded(
        "session and slice of five minutes, until written", "200,000 rows",
        CONTROL_GROWTH + "test_rows_that_cannot_be_written_are_not_kept_without_end",
    ),
    CONTROL + "executors.strikes.Strikes._programs": Bounded(
        "program", "1,024 that struck last", CONTROL_GROWTH + "test_strikes_are_remembered_of_few"
    ),
    CONTROL + "executors.strikes.Strikes._ends": Bounded(
        "user", "1,024 who struck last", CONTROL_GROWTH + "test_strikes_are_remembered_of_few"
    ),
    CONTROL + "executors.suspects.Suspects._programs": Bounded(
        "program", "256 that were suspected last",
        "tests/broker/control/test_suspects.py::"
        "test_what_is_remembered_of_suspects_is_bounded_and_the_oldest_goes_first",
    ),
    CONTROL + "executors.suspects.Suspects._times": Bounded(
        "user and program", "1,024 that were suspected last",
        "tests/broker/control/test_suspects.py::"
        "test_what_is_remembered_of_suspects_is_bounded_and_the_oldest_goes_first",
    ),
    CONTROL + "listening.channel.ExecutorChannel._outgoing": Bounded(
        "sessions' beginnings and ends; evictions while 1,024 frames wait are refused",
        "a few frames a session, and 1,024",
        CONTROL_GROWTH + "test_a_channel_that_nobody_reads_says_so",
    ),
    # -- the executor
    EXECUTOR + "works.celltimes.CellDeviceTimes._next": Bounded(
        "session", "1,024 cells, then the oldest is the one before it",
        CELLS + "test_cells_without_end_behind_one_work_are_bounded",
    ),
    EXECUTOR + "works.celltimes.CellDeviceTimes._seconds": Bounded(
        "session", "16 cells", CELLS + "test_the_last_sixteen_are_remembered",
    ),
    EXECUTOR + "connection.Connection._unsent": Bounded(
        "session, user", "32 MiB, 128 MiB, then the stream is broken",
        GROWTH + "test_a_client_that_does_not_read_is_ended",
    ),
    EXECUTOR + "orders.Orders._accounts": Bounded(
        "user", "those with a session, and 4,096",
        GROWTH + "test_accounts_of_users_without_a_session_go",
    ),
    EXECUTOR + "admission.probes.Probes._waiting": Bounded(
        "session, user", "64 with the helpers, 16 MiB; 64 MiB",
        GROWTH + "test_a_session_with_enough_to_be_helped_with_is_not_read",
    ),
    EXECUTOR + "works.base.Work.followers": Bounded(
        "work", "64 downloads, the others take their place in the order of works",
        GROWTH + "test_downloads_behind_one_work_are_counted",
    ),
    EXECUTOR + "admission.pending.PendingPrograms.told": Bounded(
        "session", "8,192 programs", GROWTH + "test_what_a_session_was_told_is_forgotten_in_time"
    ),
    EXECUTOR + "session.ExecutorSession.generators": Bounded(
        "session", "1,024", GROWTH + "test_generators_are_few"
    ),
    EXECUTOR + "scheduling.forecast.Forecast._made": Bounded(
        "session", "buffers that it has",
        GROWTH + "test_a_forecast_forgets_what_was_dropped_between_two_works",
    ),
    EXECUTOR + "scheduling.shortway.untold.Untold._followed": Bounded(
        "executor", "8 works, of 2 ms", SHORT_WAY + "test_no_more_than_a_few_are_told_of_together"
    ),
    EXECUTOR + "aside.HelperThread._spent": Bounded(
        "identity", "256, and those with tasks", GROWTH + "test_an_aside_remembers_few_who_are_gone"
    ),
    PROGRAMS + "shared.SharedEntries._owners": Bounded(
        "identity", "8,192 answers and 16 MiB; 4,096 definitions and 64 MiB of form",
        SHARED + "test_whoever_brings_ten_thousand_entries_makes_room_with_their_own",
    ),
    PROGRAMS + "checking.inference._known": Bounded(
        "executor", "16,384 keys of 4,096 characters",
        GROWTH + "test_keys_of_long_lists_are_not_kept",
    ),
    PROGRAMS + "running.callables._known": Bounded(
        "executor", "8,192 keys of 4,096 characters",
        GROWTH + "test_keys_of_long_lists_are_not_kept",
    ),
    # -- the scheduler
    "jgpu.sched.ledger.FairShare.users": Bounded(
        "user", "those with a session, and 4,096",
        SCHED + "test_accounts_are_kept_of_few_users_without_a_session",
    ),
    "jgpu.sched.sessions.session.ScheduledSession.story": Bounded(
        "session", "64 entries",
        "tests/sched/test_scheduler_surface.py::"
        "test_a_story_tells_what_happened_and_why_and_is_bounded",
    ),
    "jgpu.sched.sessions.progress.SessionProgress.iteration_times": Bounded(
        "session", "128 times",
        "tests/sched/test_scheduler_surface.py::"
        "test_the_distribution_of_iteration_times_is_that_of_the_last_ones",
    ),
    # -- the wire
    "jgpu.wire.framing.FrameReader.held": Bounded(
        "connection", "a frame of 4 MiB and one read",
        GROWTH + "test_a_reader_holds_no_more_than_a_frame",
    ),
}  # fmt: skip

OWNED = {
    "a seat or a session, whose numbers are limited": """
        broker.control.server.Broker._holders
        broker.control.sessions.Sessions._lines
        broker.control.quotas.ledger.meter.Meter._accounts
        broker.control.quotas.ledger.meter.Meter._current
        broker.control.quotas.desk.QuotaService._bytes
        broker.control.quotas.desk.QuotaService._orders
        broker.control.quotas.desk.QuotaService._standings
        broker.executor.memory.accounts.Account.sessions
        broker.executor.admission.gate.Gate._begun
        broker.executor.admission.gate.Gate._gates
        broker.executor.admission.gate.Gate._told
        broker.control.executors.culprits.Culprits._stories
        broker.executor.streams.Streams.handlers
        broker.executor.pump.Pump.sessions
        broker.executor.streams.Streams._waiting_bytes
        broker.executor.streams.Streams.backlog
        broker.executor.streams.Streams.blocked
        broker.executor.streams.Streams.stalled
        broker.executor.scheduling.driver.SchedulerDriver._forecasts
        broker.executor.scheduling.shortway.way.ShortWay.forecasts
        broker.executor.scheduling.driver.SchedulerDriver._sessions
        broker.executor.scheduling.emptying.Emptying._sessions
        broker.executor.programs.buffers._NONE
        broker.executor.devices.cuda.CudaDevice._arenas
        broker.executor.admission.probes.Probes._running
        sched.journal.Journal.waiting
        sched.lanes.table.LaneTable.awaiting_growth
        sched.lanes.table.LaneTable.sessions
        sched.lanes.table.LaneTable.unplaced
        sched.lanes.lane.Lane.members
        sched.lanes.waiting.WaitingMembers._fresh
        sched.lanes.waiting.WaitingMembers._heap
        sched.ledger.FairShare._fading
        sched.ledger.FairShare.active
        sched.sessions.user.User.active
        sched.spilling.SpillPlanner.stranded
        sched.spilling.SpillPlanner.leaving
    """,
    "a record of the flight page, of which there are 80": """
        broker.control.reports.report.DeviceView.working
        broker.control.executors.watchdog.Sight.living
        broker.control.executors.watchdog.Sight.retired
        broker.control.executors.watchdog.Watchdog._ended_ns
        broker.control.executors.watchdog.Watchdog._noted
        broker.control.executors.watchdog.Watchdog._told_ns
    """,
    "a connection, whose number is limited": """
        broker.control.server.Broker._tasks
        broker.executor.connection.Connection._hunted
    """,
    "what was used between two counts, a row a session": """
        broker.control.quotas.ledger.meter.Meter._changed
    """,
    "usage within the horizon, a figure a user and slice": """
        broker.control.quotas.ledger.usage.UsageHistory._history
        broker.control.quotas.ledger.window.Window._cells
    """,
    "the works of a session: 2,048 and 16 MiB, then it is not read": """
        broker.executor.dispatch.MessageHandler._missing
        broker.executor.scheduling.forecast.Forecast._peaks
        broker.executor.scheduling.forecast.Forecast._pending
        broker.executor.admission.pending.PendingPrograms.asked
        broker.executor.works.queue.WorkQueue.cancel_requests
        broker.executor.works.queue.WorkQueue.cancelled
        broker.executor.works.queue.WorkQueue.held
        broker.executor.works.queue.WorkQueue.notes
        broker.executor.works.queue.WorkQueue.offered
        broker.executor.works.queue.WorkQueue.received
        broker.executor.scheduling.stuck.shortage.Shortage._back
        broker.executor.scheduling.driver.SchedulerDriver._leases
        broker.executor.scheduling.feed.LaneFeed.starts
        broker.executor.scheduling.driver.SchedulerDriver._works
        broker.executor.scheduling.shortway.runs.ShortRuns._works
        broker.executor.devices.host.HostDevice._done
        broker.executor.devices.lanethread.LaneThread._done
        broker.executor.devices.lanethread.LaneThread._jobs
        broker.executor.devices.lanethread.LaneThread._tokens
        broker.executor.programs.running.notes.ValueNotes._places
        broker.executor.programs.running.notes.ValueNotes.blocks
        broker.executor.programs.running.notes.ValueNotes.taken
        broker.executor.works.faults.ValueFaults._dropped
        broker.executor.works.faults.ValueFaults._readings
        broker.executor.works.faults.ValueFaults._trail
        broker.executor.works.faults._Reading.data
        broker.executor.works.faults._Reading.notes
        broker.executor.devices.gpu.lane.StreamLane.waiting
        broker.executor.devices.gpu.port.Flight.after
        broker.executor.devices.gpu.port.Flight.copies
        broker.executor.devices.gpu.port.Flight.hops
        broker.executor.devices.gpu.port.Flight.retired
        broker.executor.devices.gpu.port.StreamPort._glimpses
        broker.executor.devices.gpu.port.StreamPort.flying
        sched.journal.Journal.actions
        sched.lanes.lane.Lane.in_flight
        sched.lanes.retirement.lane.in_flight
        sched.sessions.memory.LaneRoom.claims
        sched.sessions.session.ScheduledSession.queue
        sched.sessions.session.ScheduledSession.started
    """,
    "tasks of the helpers: 64 a session and 16 MiB, then it is not read": """
        broker.executor.aside.HelperThread.results_due
        broker.executor.aside.HelperThread._tasks
        broker.executor.aside.HelperThread._tokens
        broker.executor.admission.definitions.Definitions._pending
    """,
    "one work, and goes with it": """
        broker.executor.programs.running.interpret.Walker._held
        broker.executor.programs.running.interpret.Walker._lent
        broker.executor.programs.running.interpret.Walker.env
        broker.executor.programs.running.interpret.Walker.failures
        broker.executor.programs.running.interpret.Walker.generators
        broker.executor.programs.running.interpret.Walker.learnt
        broker.executor.programs.running.interpret.Walker.poison
        broker.executor.programs.running.interpret.Walker.verified
        broker.executor.programs.outcome.Outcome.failures
        broker.executor.programs.outcome.Outcome.outputs
        broker.executor.programs.outcome.RunContext.generators
        broker.executor.works.runs.RunWork._dead
        broker.executor.works.runs.RunWork._failures
        broker.executor.works.runs.RunWork._masks
        broker.executor.works.runs.RunWork._suspended
        broker.executor.works.course.Course._runs
        broker.executor.works.runs.RunWork.spoiled
        broker.executor.works.runs.RunWork.told
        broker.executor.scheduling.shortway.runs.ShortRuns._told
        broker.executor.works.transfers.DownloadWork._data
        broker.executor.works.base.Work.before
    """,
    "one program, whose ops and slots the wire limits": """
        broker.executor.programs.running.callables._Seen.calls
        broker.executor.programs.checking.check._Walk.least
        broker.executor.programs.checking.check._Walk.names
        broker.executor.programs.checking.check._Walk.resized
        broker.executor.programs.checking.check._Walk.slots
        broker.executor.programs.checking.check._Walk.steps
        broker.executor.programs.running.assembly._Assembler.instructions
        broker.executor.programs.running.assembly._Assembler.names
        broker.executor.programs.running.assembly._Assembler.passing
        broker.executor.programs.running.assembly._Assembler.places
        broker.executor.programs.running.walking.PlanWalk.restrides
        broker.executor.programs.running.walking.PlanWalk.variables
        broker.executor.programs.running.compile.Variant._written
        broker.executor.programs.running.compile.Written.step_of_line
        broker.executor.programs.running.compile.Written.comparisons
        broker.executor.programs.running.compile._Writer.comparisons
        broker.executor.programs.precautions.language.Attempt._given
        broker.executor.programs.running.compile._Writer.clamped
        broker.executor.programs.running.compile._Writer.constants
        broker.executor.programs.running.compile._Writer.globals
        broker.executor.programs.running.compile._Writer.lines
        broker.executor.programs.running.compile._Writer.step_of_line
        broker.executor.programs.running.compile._Writer.tells
        broker.executor.programs.contracts.language.Call._arguments
        broker.executor.programs.contracts.language.Call._host
        broker.executor.programs.definition.Definition._restrides
        broker.executor.programs.definition.Definition._unseen
        broker.executor.programs.definition.Definition.predicted_s
        broker.executor.programs.checking.trusted.Look._arguments
        broker.executor.programs.plan.ProgramPlan.bases
        broker.executor.programs.checking.guards.Noting.proven
        broker.executor.programs.running.notes.ValueNotes.proven
        broker.executor.programs.plan.ProgramPlan.changed
        broker.executor.programs.plan.ProgramPlan.exact
        broker.executor.programs.plan.ProgramPlan.provable
        broker.executor.programs.plan.ProgramPlan.generators
        broker.executor.programs.plan.ProgramPlan.last_use
        broker.executor.programs.plan.ProgramPlan.first_write
        broker.executor.programs.plan.ProgramPlan.last_write
        broker.executor.programs.plan.ProgramPlan.names
        broker.executor.programs.plan.ProgramPlan.private
        broker.executor.programs.plan.ProgramPlan.taken
        broker.executor.programs.plan.ProgramPlan.variables
        broker.executor.programs.plan.ProgramPlan.written
        wire.program.Op.kwargs
    """,
    "one definition: 8 compiled forms, 32 sizes and 64 masks, then they begin anew": """
        broker.executor.programs.definition.Definition._masks
        broker.executor.programs.definition.Definition._variants
    """,
    "buffers: 262,144 a session; 8 views a buffer": """
        broker.executor.programs.buffers.Buffer._views
        broker.executor.memory.table.BufferTable.buffers
        broker.executor.memory.hoststore.HostStore._gaps
        broker.executor.memory.hoststore.Saved._chunks
        broker.executor.memory.spilling.CopiedBack.back
        broker.executor.memory.spilling.CopiedBack.unreadable
        broker.executor.devices.gpu.port.Uses.of
    """,
    "what is alive elsewhere, by weak reference": """
        broker.executor.programs.geometry._interned
    """,
    "`programs.shared`, with the table of its keys": """
        broker.executor.programs.shared.SharedEntries._held
        broker.executor.programs.shared.SharedEntries._kept
    """,
    "`control.strikes`, with the tables of programs and users; two users a program": """
        broker.control.executors.strikes.Strike.users
        broker.control.executors.strikes.Strikes._held
    """,
    "`control.suspects`, with the table of programs: who was in flight, and 256 users": """
        broker.control.executors.suspects._Suspicion.left
        broker.control.executors.suspects._Suspicion.through
    """,
    "the last 32 small uploads of a session, and 8 answers of each": """
        broker.executor.programs.checking.proofs.Proof._answers
        broker.executor.programs.checking.proofs.Proofs._kept
    """,
    "the last 256 programs that were refused": """
        broker.executor.admission.definitions.Definitions._bad
    """,
    "the executor's sixteen last cells of a session": """
        wire.reports.report.SessionReport.cells
    """,
    "a memo of 4,096, 1,024 or 256 answers": """
        broker.executor.programs.contracts.language._meta
        broker.executor.programs.contracts.recurrent._workspace
        broker.executor.programs.checking.ops._registered
        broker.executor.programs.checking.ops.resolve
        wire.vocabulary.refusal
    """,
}

FIXED = {
    "of a device for tests": """
        broker.executor.devices.onhost.branches._entered
        broker.executor.devices.onhost.branches._library
        broker.executor.devices.onhost.calls.HostCalls._pinned
        broker.executor.devices.onhost.generator._all
        broker.executor.devices.onhost.launches.Launcher._queue.failures
        broker.executor.devices.onhost.launches.Launcher._tried
        broker.executor.devices.onhost.memory.HostMemory._kept
        broker.executor.devices.onhost.shadows.Shadows._blocks
        broker.executor.devices.onhost.streams.HostStream.tasks
        broker.executor.devices.onhost.streams.HostStreams._all
        broker.executor.devices.onhost.streams.HostStreams._slow
        broker.executor.devices.onhost.streams.HostStreams.fault
        broker.executor.devices.onhost.tasks.HostCall.kwargs
        broker.executor.devices.onhost.tasks.HostCall.outs
        broker.executor.devices.onhost.tasks.HostCall.results
        broker.executor.devices.onhost.trials._stand_ins.storages
        broker.executor.devices.onhost.trials.key_of.blocks
    """,
    "made by an administrator": """
        broker.control.quotas.groups.Groups._members
        broker.control.quotas.ledger.charges.UsageLedger._settings
        broker.control.quotas.scopes.QuotaSettings.members
        broker.control.quotas.scopes.QuotaSettings.specs
        broker.control.quotas.scopes.Scopes.hub
        broker.control.quotas.scopes.Scopes.live
        broker.control.quotas.scopes.Scopes.timed
        broker.control.quotas.groups.Groups._registered
        broker.control.listening.doorkeeper.Doorkeeper._told
        broker.control.listening.doorkeeper.Doorkeeper._waiting
        broker.control.listening.identity.Identities._registered
        broker.control.servers.Servers._people
        broker.control.servers.Servers._quotas
        broker.control.servers.Servers._servers
        broker.control.servers._Quota.settings
        broker.control.servers._Record.people
        broker.control.servers._Record.quotas
        broker.control.servers._Record.servers
        wire.reports.report.ScopeReport.settings
        wire.reports.report.BrokerReport.refusals
        broker.control.configuration.settings.BrokerSettings.executor_environment
    """,
    "read once, at the ledger's opening": """
        broker.control.quotas.ledger.leftovers.Leftovers.charges
        broker.control.quotas.ledger.leftovers.Leftovers.events
        broker.control.quotas.ledger.leftovers.Leftovers.settings
        broker.control.quotas.ledger.store.LedgerContent.settings
        broker.control.quotas.ledger.store.LedgerContent.usage
    """,
    "told by the control process, 1,024 at most": """
        broker.executor.admission.refusals.Refusals._programs
        broker.executor.scheduling.trials.Trials._through
    """,
    "one of it": """
        broker.control.quotas.ledger.store.Store._engine
        broker.control.sessions.Sessions._asked
        broker.control.executors.supervisor.Supervisor._claim
        broker.executor.devices.cuda.CudaDevice._copies
        broker.executor.devices.gpu.staging.Staging._thread
        broker.executor.memory.hoststore.HostStore._file
        broker.executor.programs.checking.foretold._library
        broker.executor.memory.hoststore.HostStore._stage
        broker.executor.pump.Pump._next_look
        broker.executor.works.cells.SessionCells.failed_from
        broker.executor.works.cells.SessionCells.first_buffer
        sched.policies.known_policies
    """,
    "a number for each bucket, or each reason there is": """
        broker.control.reports.audit.Audit.refusals
        sched.reports.measures.Histogram._counts
    """,
    "lanes, helpers and restarts, of which the settings say how many there are": """
        broker.control.executors.restarts.Restarts._ends
        broker.executor.devices.cpu.CpuDevice._lanes
        broker.executor.devices.null.NullDevice._records
        broker.executor.devices.cuda.CudaDevice._lanes
        broker.executor.devices.cuda.CudaDevice._streams
        broker.executor.devices.gpu.glimpses.GlimpseRing._free
        broker.executor.devices.gpu.port.StreamPort._spare
        broker.executor.admission.probes.Probes._busy
        broker.executor.admission.probes.Probes._free
        broker.executor.admission.probes.Probes._hands
        broker.executor.admission.probes.Probes._lost
        broker.executor.programs.flags.FlagGate._waiting
        broker.executor.scheduling.feed.LaneFeed._tails
        broker.executor.scheduling.trials.Trials._flying
        sched.lanes.table.LaneTable.lanes
        sched.policies.pack.Pack._rates
    """,
    "calls of the broker's own, one at a time": """
        broker.control.quotas.ledger.thread.BlockingThread._calls
    """,
    "the control process's own stream": """
        broker.executor.connection.Connection.descriptors
    """,
    "the last works, for measurements alone": """
        broker.executor.scheduling.trace.Trace._rows
    """,
    "tables that are written in the code": """
        broker.executor.devices.onhost.kernels.drawing.factories._Factory._places
        broker.executor.devices.onhost.kernels.tables.DRAWS
        broker.executor.devices.onhost.kernels.tables.KERNELS
        broker.executor.devices.gpu.mending.IndexMender._kernels
        broker.executor.dispatch.MessageHandler.handlers
        broker.executor.programs.contracts.language.CONTRACTS
        broker.executor.programs.precautions.language.PRECAUTIONS
        broker.executor.programs.precautions.sizes.SIZES
        broker.executor.programs.contracts.language.LIMITS
        broker.executor.programs.contracts.language._SELFCHECKED
        broker.executor.programs.contracts.language._WITHOUT_META
        broker.executor.scheduling.telling.CoreTeller._handlers
    """,
}


def found():
    """Everything that may grow, without the package's name."""
    return {
        each.full.removeprefix("jgpu.")
        for each in containers(*PACKAGES)
        if each.grown
        and each.name != "__all__"
        and not any(each.module.startswith(other) for other in WITHOUT_CLIENTS)
    }


def listed(groups):
    return [name for names in groups.values() for name in names.split()]


def test_every_table_that_can_grow_has_an_owner_and_a_bound():
    known = {name.removeprefix("jgpu.") for name in BOUNDED} | {*listed(OWNED), *listed(FIXED)}
    assert found() - known == set()


def test_no_entry_is_without_its_table():
    known = {name.removeprefix("jgpu.") for name in BOUNDED} | {*listed(OWNED), *listed(FIXED)}
    assert known - found() == set()


def test_no_table_stands_in_two_lists():
    names = [*(name.removeprefix("jgpu.") for name in BOUNDED), *listed(OWNED), *listed(FIXED)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_every_bound_is_pushed_by_a_test_that_there_is(name):
    file, _, test = BOUNDED[name].grown.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
