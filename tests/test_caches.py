"""No cache answers for an untried call: each entry lists what its key leaves out and its tests.

The code is read (`containers.py`): each container of the client and the executor that outlives a
call and has keys is either a cache with an entry in `CACHES`, or state with one in `STATE`. A cache
without an entry fails here, and so does an entry without a cache.
"""

import ast
from pathlib import Path

import pytest
from containers import containers

TESTS = Path(__file__).parent
PACKAGES = (
    "jgpu.accelerator",
    "jgpu.device",
    "jgpu.broker.executor",
    "jgpu.wire",
    "jgpu.sched",
)
#: kinds that remember by a key; a cached function or property is always a cache
KEYED = {"mapping", "set", "lazy", "function", "property"}
ALWAYS = {"function", "property"}

ON_DEVICE = "device/on_device/test_cached.py"
REMEMBERED = "broker/programs/test_programs_remembered.py"
COMPARING = "broker/programs/test_programs_comparing.py"
PROBE = "broker/programs/test_programs_probe.py"
PLAN = (
    "nothing: a plan is frozen, and this follows from it alone",
    f"{REMEMBERED}::test_a_plan_says_after_many_runs_what_it_said_before",
)
SHARED = (
    "who asks, and when: an entry is found by a hash of all that its value follows from",
    f"{REMEMBERED}::test_what_differs_in_anything_has_an_entry_of_its_own",
)
LEARNT = (
    "parameters and inputs of the run that taught it; a compiled run that differs is interpreted",
    f"{COMPARING}::test_other_strides_are_laid_out_as_claimed",
)
MASKS = (
    "buffers, parameters, generators: they are arguments of what is kept",
    f"{REMEMBERED}::test_every_mask_has_its_own_variant_whatever_came_before",
)

#: by name: what the key leaves out and why that is right, and the test that varies exactly that
CACHES = {
    "jgpu.device.recording.dispatch.plans": (
        "values of numbers, which are parameters of the program; buffers and offsets, which the "
        "log has; the default dtype: plans are forgotten when it is set",
        f"{ON_DEVICE}::test_a_plan_answers_for_other_numbers_places_and_defaults",
    ),
    "jgpu.accelerator.loading.load": (
        "nothing: it has no key; what is built, or switched off, counts from a kernel's next start",
        "accelerator/test_accelerator_loading.py"
        "::test_what_was_built_is_loaded_unless_it_is_switched_off",
    ),
    "jgpu.device.interrupts._known": (
        "nothing: code stays where it was loaded; libraries of Python's and torch's never go",
        "device/on_device/test_interrupted.py"
        "::test_whose_code_is_at_an_address_is_what_the_linker_says_whenever_it_is_asked",
    ),
    "jgpu.device.likenative.checks.dtypes._known": (
        "sizes: they do not decide which types a kernel takes; of nothing it is not asked",
        "device/on_device/test_unsupported_types.py"
        "::test_a_type_that_a_kernel_lacks_is_refused_on_the_line_as_natively",
    ),
    "jgpu.device.likenative.checks.ranges._found": (
        "sizes, except one element and nothing: they do not decide which numbers a kernel takes",
        "device/on_device/test_error_inputs.py"
        "::test_what_is_known_of_small_tensors_does_not_hide_what_a_kernel_refuses",
    ),
    "jgpu.device.likenative.mixed._declared": (
        "nothing: what torch declares of an op stands in a file of torch's",
        "device/on_device/test_mixed.py::test_wrappers_have_the_names_that_people_report",
    ),
    "jgpu.device.likenative.mixed._entries": (
        "nothing: it has no key, and torch's file stays as it is",
        "device/on_device/test_mixed.py::test_wrappers_have_the_names_that_people_report",
    ),
    "jgpu.device.sparse.dots._rounds_tails_once": (
        "nothing: it has no key, and torch's kernels stay as they were compiled",
        "device/on_device/test_compressed.py"
        "::test_reduced_products_and_their_gradients_have_native_bits",
    ),
    "jgpu.device.composed.attention.arguments._gives_a_batch": (
        "switches: the batch is given before any of them is read, and torch's code stays",
        "device/on_device/test_func.py::test_attention_inside_a_transform_takes_the_hosts_way",
    ),
    "jgpu.device.composed.attention.oncuda._known": (
        "addresses, as far as no alignment depends on them",
        "device/test_on_cuda.py::test_the_same_tensors_take_another_kernel_under_other_switches",
    ),
    "jgpu.device.composed.attention.onhost.on_host": (
        "what tensors hold, where they begin, the scale: none of them is looked at. Nor are the "
        "switches in it: nothing is looked up where one is turned",
        "device/on_device/test_attention.py"
        "::test_an_answer_is_for_tensors_that_lie_and_are_wanted_so",
    ),
    "jgpu.device.composed.branches._norms": (
        "what tensors hold, where they begin, how much statistics move: sizes and types decide",
        "device/test_on_cuda.py::test_the_op_that_cuda_would_run_is_recorded_forward_and_backward",
    ),
    "jgpu.broker.executor.devices.onhost.launches.Launcher._tried": (
        "values of tensors: ops whose results they size are waited for, whatever is said here",
        "broker/onhost/test_onhost_launches.py::"
        "test_a_kernel_that_returns_otherwise_than_was_said_is_right",
    ),
    "jgpu.device.composed.recurrent._layouts": (
        "where weights lie and what they hold: how they are packed follows from shapes and type",
        "device/test_on_cuda.py::test_the_op_that_cuda_would_run_is_recorded_forward_and_backward",
    ),
    "jgpu.device.recording.viewing.views.known": (
        "where the tensor begins: offsets are added, and looked at where elements grow",
        f"{ON_DEVICE}::test_a_view_is_not_shown_from_where_another_of_its_geometry_began",
    ),
    "jgpu.device.recording.viewing.stretches.known": (
        "where the stretch begins, in tensor and storage: that is computed at each call",
        f"{ON_DEVICE}::test_rows_and_slices_begin_where_native_ones_do_whatever_was_seen_before",
    ),
    "jgpu.device.geometry._interned": (
        "buffer and offset, which tensors have beside it",
        f"{ON_DEVICE}::test_a_plan_answers_for_other_numbers_places_and_defaults",
    ),
    "jgpu.device.geometry.InternedGeometry._meta": (
        "whose tensor it stands for; nobody who changes one in place gets it",
        f"{ON_DEVICE}::test_a_tensor_that_changes_its_shape_changes_no_other_of_its_geometry",
    ),
    "jgpu.device.library.routing.override": (
        "which kernel is registered: the function looks it up at each call",
        "device/on_device/test_library_kernels.py"
        "::test_a_kernel_in_python_works_as_for_host_tensors",
    ),
    "jgpu.device.likenative.checks.inplace._is_tagged": (
        "nothing: tags of torch's ops stand in torch's own files",
        "device/on_device/test_inplace.py"
        "::test_elementwise_in_place_ops_compute_or_refuse_as_native_ones",
    ),
    "jgpu.device.tensors.scripted._tracer": (
        "nothing: it has no key, and the tracer's dispatch key is a constant of torch",
        "device/on_device/test_traces.py::test_a_traced_function_computes_with_other_inputs",
    ),
    "jgpu.device.recording.ops.infos": (
        "the kernels of an overload: what is kept follows from its schema; the overload is kept, "
        "so its identity is not given away",
        f"{ON_DEVICE}::test_an_op_that_is_defined_anew_is_another_op",
    ),
    "jgpu.device.recording.cuts.recorder.ProgramRecorder._known": (
        "numbers, buffers and what dies with the run: they go with the run",
        f"{ON_DEVICE}::test_a_plan_answers_for_other_numbers_places_and_defaults",
    ),
    "jgpu.device.client.notebook.wanted.PredictedReads._kept": (
        "what is done to the buffer: it is forgotten when a run may write it",
        "device/on_device/test_wanted.py::test_what_was_read_is_asked_for_anew_once_it_was_written",
    ),
    "jgpu.device.client.notebook.wanted.PredictedReads._values": (
        "the buffer's content: a value goes when a run may write its buffer",
        "device/on_device/test_wanted.py::test_a_value_is_forgotten_when_its_buffer_is_written",
    ),
    "jgpu.device.composed.autocast._cache": (
        "the weight's content, as torch's own cache does: within one context a weight is cast once",
        f"{ON_DEVICE}::test_a_cast_is_not_kept_past_its_context_or_for_another_type",
    ),
    "jgpu.device.client.notebook.loops.Loops._statements": (
        "nothing: a code object is made of one text, and is kept alive",
        "device/test_loops.py::test_a_loop_after_another_counts_anew",
    ),
    "jgpu.device.composed.composites.Face.__torch_dispatch__.faces": (
        "nothing: it lives for one call, by the identity of what the call holds",
        f"{ON_DEVICE}::test_stand_ins_of_one_call_stand_for_nothing_in_the_next",
    ),
    "jgpu.broker.executor.programs.running.callables._known": (
        "tensors' sizes beyond whether they are one, run parameters' values: parsers do not look",
        "broker/programs/test_programs_callables.py"
        "::test_a_call_is_not_answered_for_by_its_neighbours",
    ),
    "jgpu.broker.executor.programs.checking.inference._known": (
        "which tensors are the same one, bytes of storage where no op looks, parameters' values: "
        "two guesses must agree",
        f"{REMEMBERED}::test_what_is_inferred_follows_the_whole_call",
    ),
    "jgpu.broker.executor.programs.geometry._interned": (
        "nothing: equal geometries are one view",
        f"{REMEMBERED}::test_geometries_that_differ_in_anything_are_different_views",
    ),
    "jgpu.broker.executor.programs.buffers.Buffer._views": (
        "the storage: views are dropped with it",
        f"{REMEMBERED}::test_a_view_shows_the_storage_that_came_back",
    ),
    "jgpu.broker.executor.programs.checking.ops.resolve": (
        "nothing: the dispatcher's kernels are those that this torch was built with",
        f"{REMEMBERED}::test_what_is_known_of_an_op_is_of_one_kind_of_device",
    ),
    "jgpu.broker.executor.programs.checking.ops._registered": (
        "when it was asked: an op that is registered later is none of this torch's",
        f"{REMEMBERED}::test_an_op_that_is_registered_later_is_refused",
    ),
    "jgpu.broker.executor.programs.contracts.language._meta": (
        "whose tensor it stands for: contracts only look",
        f"{REMEMBERED}::test_contracts_leave_their_tensors_as_they_were",
    ),
    "jgpu.broker.executor.programs.contracts.recurrent._workspace": (
        "the weights' values, on which no size depends",
        f"{REMEMBERED}::test_a_workspace_is_of_the_layer_that_was_asked_for",
    ),
    "jgpu.broker.executor.programs.definition.Definition._variants": MASKS,
    "jgpu.broker.executor.programs.definition.Definition._masks": MASKS,
    "jgpu.broker.executor.programs.running.compile.Variant._written": MASKS,
    "jgpu.broker.executor.programs.definition.Definition._restrides": LEARNT,
    "jgpu.broker.executor.programs.definition.Definition._unseen": LEARNT,
    **dict.fromkeys(
        (
            f"jgpu.broker.executor.programs.plan.ProgramPlan.{name}"
            for name in (
                *(
                    "bases",
                    "changed",
                    "exact",
                    "first_write",
                    "generators",
                    "last_use",
                    "last_write",
                ),
                *("provable", "taken", "variables"),
                "written",
            )
        ),
        PLAN,
    ),
    "jgpu.broker.executor.programs.shared.SharedEntries._kept": SHARED,
    "jgpu.broker.executor.admission.definitions.Definitions._bad": SHARED,
    "jgpu.broker.executor.programs.checking.proofs.Proof._answers": (
        "the bytes: they stay as they are, and the proof goes before anything may write the buffer",
        "broker/executor/test_proofs.py::test_what_a_program_has_written_since_is_looked_at",
    ),
    "jgpu.wire.vocabulary.refusal": (
        "nothing: the lists are constants",
        f"{REMEMBERED}::test_what_is_refused_is_refused_in_any_order",
    ),
    "jgpu.sched.policies.known_policies": (
        "packages that are installed while the broker runs; they count from its next start on",
        f"{REMEMBERED}::test_policies_are_those_of_the_start",
    ),
}

#: by class or by full name: what it holds. State is looked up by whose it is and is never computed
#: from its key, so it cannot answer for another.
STATE = {
    "jgpu.wire.reports.report.BrokerReport.refusals": "how often, by reason",
    "jgpu.wire.reports.report.ScopeReport": "an answer about quotas",
    "jgpu.wire.reports.report.SessionReport.cells": "times, by cell",
    "jgpu.broker.executor.works.celltimes.CellDeviceTimes": "times, by cell",
    "jgpu.device.activate._done": "whether the device was activated",
    "jgpu.device.interrupts.QuietInPython._struck": "signals that struck in a block",
    "jgpu.device.interrupts._since": "signals that are put off",
    "jgpu.device.interrupts._under_way": "signals that will be sent again",
    "jgpu.device.flags._instead": "switches that what is cut just now was recorded under",
    "jgpu.device.composed.autocast._library": "registrations with torch",
    "jgpu.device.hooks.cells._running": "the cell that runs",
    "jgpu.device.composed.composites.LOWERED": "a list of ops",
    "jgpu.device.composed.composites._library": "registrations with torch",
    "jgpu.device.composed.innercasts._library": "registrations with torch",
    "jgpu.device.cuda.memory._fraction": "what the user set",
    "jgpu.device.current": "the process's session",
    "jgpu.device.recording.dispatch.LOWERED": "a list of ops, filled when the device is installed",
    "jgpu.device.errors._CLASSES": "a list of errors",
    "jgpu.device.recording.infer.OpPlan": "one op's answer",
    "jgpu.device.recording.infer._last": "a counter",
    "jgpu.device.client.notebook.largest": "what lives, and the limit that the broker told",
    "jgpu.device.client.notebook.loops.Loops._counted": "how far a running loop is",
    "jgpu.device.magics": "one answer to a question",
    "jgpu.broker.executor.programs.buffers._NONE": "the empty mapping, never written",
    "jgpu.broker.executor.scheduling.emptying.Emptying": "ended sessions with buffers to free",
    "jgpu.device.library": "kernels that a notebook has registered",
    "jgpu.device.likenative.checks.inplace._Shrinking": "the sizes of one call",
    "jgpu.device.sparse.coo.SparseTensor.functions": "a list of functions",
    "jgpu.device.tensors.modules._tagged": "how many parameters had state",
    "jgpu.device.tensors.saving.made": "the attributes of one copied tensor",
    "jgpu.device.tensors.scripted._library": "registrations with torch",
    "jgpu.device.tensors.modules._optimizers": "what lives",
    "jgpu.device.recording.cuts.recorder.Compiled.wanted": "what is read after each run: a guess",
    "jgpu.device.recording.cuts.recorder.ProgramRecorder.by_hash": "programs that were sent",
    "jgpu.device.recording.cuts.recorder.ProgramRecorder._numbers": "a number for each state",
    "jgpu.device.recording.cuts.recorder._Builder": "one program in the making",
    "jgpu.device.tensors.rng.Generators": "states that the device told, until a work draws",
    "jgpu.device.tensors.sending._feeders": "what lives",
    "jgpu.device.client.arrivals.Arrivals": "what to do with each type of message",
    "jgpu.device.client.buffers.ClientBuffers": "why storages of one connection have no value",
    "jgpu.device.client.connection.BrokerConnection.handlers": "handlers",
    "jgpu.device.client.outbox.Outbox": "seeds that wait for a connection",
    "jgpu.device.client.requests.Requests": "questions whose answer is to come",
    "jgpu.device.client.buffers.HeldBytes": "sizes of one connection's storages",
    "jgpu.device.tensors.scripted._Saving": "the module that is being saved, as long as that takes",
    "jgpu.device.sparse.base.CompositeTensor": "a list of ops",
    "jgpu.device.tensors.storage._proxies": "an object a buffer, which holds the buffer alone",
    "jgpu.wire.program.Op": "one op's arguments",
    "jgpu.broker.executor.aside.HelperThread": "tasks that wait",
    "jgpu.broker.executor.admission.definitions.Definitions._pending": "who waits for a check",
    "jgpu.broker.executor.devices.cpu.CpuDevice": "lanes",
    "jgpu.broker.executor.devices.cuda.CudaDevice": "lanes, streams, arenas",
    "jgpu.broker.executor.devices.gpu.port.Uses": "uses of streams",
    "jgpu.broker.executor.devices.gpu.staging.Staging": "a thread",
    "jgpu.broker.executor.devices.null.NullDevice": "works that are over",
    "jgpu.broker.executor.devices.onhost": "a device for tests: its memory and its streams",
    "jgpu.broker.executor.devices.onhost.kernels": "a list of ops, and of the arguments of one",
    "jgpu.broker.executor.devices.fake": "a device for tests of the devices' code",
    "jgpu.broker.executor.dispatch.MessageHandler": "works that wait for their program; handlers",
    "jgpu.broker.executor.scheduling.forecast.Forecast": "bytes of the iteration that runs",
    "jgpu.broker.executor.admission.gate.Gate": "who is held back",
    "jgpu.broker.executor.memory.hoststore.HostStore": "files and buffers of the pool",
    "jgpu.broker.executor.orders.Orders": "accounts",
    "jgpu.broker.executor.admission.probes.Probes": "questions that wait",
    "jgpu.broker.executor.programs.checking.check._Walk": "one program while it is checked",
    "jgpu.broker.executor.programs.running.assembly._Assembler": "one program, assembled",
    "jgpu.broker.executor.programs.running.compile.Written": "one compiled program",
    "jgpu.broker.executor.programs.running.compile._Writer": "one program while it is compiled",
    "jgpu.broker.executor.programs.running.walking.PlanWalk": "one program while it is compiled",
    "jgpu.broker.executor.programs.contracts.language.CONTRACTS": "a list of ops",
    "jgpu.broker.executor.programs.contracts.language.LIMITS": "a list of ops",
    "jgpu.broker.executor.programs.contracts.language._SELFCHECKED": "a list of ops",
    "jgpu.broker.executor.programs.precautions.sizes.SIZES": "a list of ops",
    "jgpu.broker.executor.programs.contracts.language._WITHOUT_META": "a list of ops",
    "jgpu.broker.executor.programs.contracts.language.Call": "one call",
    "jgpu.broker.executor.programs.definition.Definition.predicted_s": "an estimate",
    "jgpu.broker.executor.programs.checking.foretold._library": "registrations with torch",
    "jgpu.broker.executor.programs.checking.trusted.Look": "one call",
    "jgpu.broker.executor.programs.running.interpret.Walker": "one run",
    "jgpu.broker.executor.programs.outcome.RunContext": "one run",
    "jgpu.broker.executor.programs.plan.ProgramPlan.names": "part of the plan",
    "jgpu.broker.executor.programs.plan.ProgramPlan.private": "part of the plan",
    "jgpu.broker.executor.programs.precautions.language": "a list of ops",
    "jgpu.broker.executor.programs.precautions.language.Attempt": "one call",
    "jgpu.broker.executor.programs.shared.SharedEntries._held": "sums over the entries",
    "jgpu.broker.executor.programs.shared.SharedEntries._owners": "whose the entries are",
    "jgpu.broker.executor.admission.pending.PendingPrograms": "marks of one session's programs",
    "jgpu.broker.executor.pump.Pump": "sessions, and what they wait for",
    "jgpu.broker.executor.streams.Streams": "sessions, and what they wait for",
    "jgpu.broker.executor.works.cells.SessionCells": "one session's cells",
    "jgpu.broker.executor.scheduling.feed.LaneFeed": "works on their way to lanes",
    "jgpu.broker.executor.scheduling.trials.Trials": "what the control process said",
    "jgpu.broker.executor.programs.checking.guards.Noting": "looks that one run does not need",
    "jgpu.broker.executor.programs.running.notes.ValueNotes": "one session's notes of wrong values",
    "jgpu.broker.executor.devices.gpu.mending.IndexMender": "a kernel for each type",
    "jgpu.broker.executor.admission.refusals.Refusals": "what the control process said last",
    "jgpu.broker.executor.works.runs.RunWork": "one run",
    "jgpu.broker.executor.session.ExecutorSession": "one session's state",
    "jgpu.broker.executor.scheduling.stuck.shortage.Shortage": "works that wait for memory",
    "jgpu.broker.executor.memory.table.BufferTable": "one session's buffers",
    "jgpu.broker.executor.scheduling.driver.SchedulerDriver": "sessions, works and leases",
    "jgpu.broker.executor.scheduling.shortway": "the driver's works and forecasts",
    "jgpu.broker.executor.scheduling.telling.CoreTeller": "handlers",
    "jgpu.sched.lanes.table.LaneTable": "sessions and lanes",
    "jgpu.sched.lanes.lane.Lane": "one lane's sessions",
    "jgpu.sched.ledger.FairShare": "users",
    "jgpu.sched.policies.pack.Pack": "rates that were measured",
    "jgpu.sched.sessions.user.User": "one user's sessions",
    "jgpu.sched.simulate": "a simulated world",
    "jgpu.sched.spilling.SpillPlanner": "sessions whose memory moves",
}


def state_of(container):
    """The entry of `STATE` that covers a container: its own, its class's or a package's."""
    parts = container.full.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in STATE), None)


@pytest.fixture(scope="module")
def found():
    return [c for c in containers(*PACKAGES) if c.kind in KEYED and c.grown]


def test_every_cache_says_what_its_key_leaves_out(found):
    silent = [
        f"{c.full} ({c.kind}, line {c.line})"
        for c in found
        if c.full not in CACHES and (c.kind in ALWAYS or state_of(c) is None)
    ]
    assert silent == [], "list them in CACHES, or in STATE if nothing in them is computed"


def test_every_entry_is_of_something_that_is_there(found):
    names = {c.full for c in found}
    assert CACHES.keys() - names == set()
    assert STATE.keys() - {state_of(c) for c in found} == set()
    assert {name for name in names if name in CACHES and name in STATE} == set()


def functions_of(path):
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", CACHES)
def test_what_it_leaves_out_is_varied_by_a_test(name):
    reason, test = CACHES[name]
    path, _, function = test.partition("::")
    assert reason
    assert function in functions_of(path)
