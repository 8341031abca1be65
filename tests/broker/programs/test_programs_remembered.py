"""What the executor's caches leave out of their keys, varied: no answer is another call's."""

import itertools
import random
from types import SimpleNamespace

import msgspec
import pytest
import torch
from contract_seeds import seeds
from recorder import Recorder
from sketch import CPU, Sketch, all_live, buffers, context, contiguous
from test_programs_replay import classify, mlp, trainer

from jgpu.broker.executor.admission.definitions import Definitions
from jgpu.broker.executor.programs import Buffer, DefinitionCache, Prober, RunContext, define
from jgpu.broker.executor.programs.checking import ops
from jgpu.broker.executor.programs.checking.arguments import bind
from jgpu.broker.executor.programs.checking.inference import infer
from jgpu.broker.executor.programs.contracts import language, recurrent
from jgpu.broker.executor.programs.geometry import geometry_of, intern
from jgpu.broker.executor.session import SessionOwner
from jgpu.errors import ProgramError
from jgpu.sched.policies import known_policies, load_policy
from jgpu.wire.program import (
    CONJ,
    NEG,
    Flags,
    Geometry,
    HostScalar,
    Op,
    Param,
    Slot,
    program_hash,
)
from jgpu.wire.vocabulary import refusal

X = torch.linspace(-1, 1, 12)
MATRIX = contiguous(3, 4)


def training():
    """A recorded step of training, and its definition."""
    torch.manual_seed(1)
    step = trainer(mlp(), classify)
    step()
    with Recorder(lift=True) as recorder:
        step()
    recording = recorder.recording()
    return recording, define(recording.data, "cpu")


def test_every_mask_has_its_own_variant_whatever_came_before():
    recording, definition = training()
    chance, fresh = random.Random(5), definition.fresh
    dead_ones = [k for k in range(definition.inputs) if k not in definition.written]
    masks = [
        (
            sum(1 << k for k in range(fresh) if chance.random() < share),
            sum(1 << k for k in dead_ones if chance.random() < 0.3),
        )
        for share in (0, 0.2, 0.5, 0.8, 1)
        for _ in range(3)
    ]
    for live, dead in [*masks, *masks[::-1]]:
        given = [Buffer(k, t.clone()) for k, t in enumerate(recording.inputs)]
        generator = torch.Generator()
        generator.set_state(recording.rng)
        outcome = definition.run(
            given,
            recording.params,
            live.to_bytes(fresh // 8 + 1, "little"),
            dead.to_bytes(definition.inputs // 8 + 1, "little"),
            RunContext(CPU, {0: generator}),
        )
        assert [output is not None for output in outcome.outputs] == [
            bool(live >> k & 1) for k in range(fresh)
        ]
        for k, output in enumerate(outcome.outputs):
            if output is not None:
                assert torch.equal(output, recording.after[definition.inputs + k])
        for k in set(range(definition.inputs)) - {k for k in dead_ones if dead >> k & 1}:
            assert torch.equal(given[k].bytes(), recording.after[k])


def test_a_plan_says_after_many_runs_what_it_said_before():
    recording, definition = training()
    plan = definition.plan
    names = (
        "bases",
        "exact",
        "first_write",
        "generators",
        "last_use",
        "last_write",
        "taken",
        "variables",
        "written",
    )
    before = msgspec.json.encode([repr(getattr(plan, name)) for name in names])
    for _ in range(4):
        given = [Buffer(k, t.clone()) for k, t in enumerate(recording.inputs)]
        definition.run(given, recording.params, all_live(definition), b"", context())
    anew = define(recording.data, "cpu").plan
    for each in (plan, anew):
        assert msgspec.json.encode([repr(getattr(each, name)) for name in names]) == before
    with pytest.raises(AttributeError):
        plan.steps = ()


def inferred(name, geometries, *args, nbytes=None):
    op = Op(f"aten::{name}", (*[Slot(k, k) for k in range(len(geometries))], *args), {}, ())
    info = ops.resolve(op.name, "cpu")
    sizes = nbytes or [4 * 12] * len(geometries)
    try:
        found = infer(info, bind(op, info, CPU), list(zip(geometries, sizes, strict=True)))
    except ProgramError as error:
        return str(error).partition(":")[0]
    return [r.geometry for r in found.returns if r is not None]


def test_what_is_inferred_follows_the_whole_call():
    cases = [
        (("sum.dim_IntList", [MATRIX], dims, keep), shape)
        for dims, keep, shape in (
            *(((0,), False, (4,)), ((1,), False, (3,)), ((0,), True, (1, 4))),
            *(((1,), True, (3, 1)), ((0, 1), False, ()), ((-1,), False, (3,))),
        )
    ]
    cases += [
        (("mul.Tensor", [contiguous(3, 4, dtype=dtype)], number), (3, 4), result)
        for dtype, number, result in (
            ("int64", 2, "int64"),
            ("int64", 2.0, "float32"),
            ("int64", True, "int64"),
            ("bool", 2, "int64"),
            ("bool", True, "bool"),
            ("int64", Param(0, "int"), "int64"),
            ("int64", Param(0, "float"), "float32"),
            ("float32", HostScalar(0, "float", "float64"), "float32"),
            ("int64", HostScalar(0, "float", "float64"), "float64"),
        )
    ]
    for seed in range(3):
        order = cases * 2
        random.Random(seed).shuffle(order)
        for call, shape, *dtype in order:
            (found,) = inferred(*call)
            assert found.shape == shape
            assert found.dtype == (dtype[0] if dtype else "float32")


def test_the_default_dtype_and_the_storage_count_where_an_op_looks():
    integers = contiguous(4, dtype="int64")
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            (found,) = inferred("div.Tensor", [integers, integers])
        finally:
            torch.set_default_dtype(torch.float32)
        assert found.dtype == str(dtype).removeprefix("torch.")


def test_geometries_that_differ_in_anything_are_different_views():
    base = ("complex64", (2, 3), (3, 1), 0, 0)
    others = [
        ("complex128", *base[1:]),
        ("complex64", (3, 2), *base[2:]),
        ("complex64", (2, 3), (1, 2), 0, 0),
        ("complex64", (2, 3), (3, 1), 1, 0),
        ("complex64", (2, 3), (3, 1), 0, CONJ),
        ("complex64", (2, 3), (3, 1), 0, NEG),
        ("complex64", (2, 3), (3, 1), 0, CONJ | NEG),
    ]
    views = [intern(Geometry(*each)) for each in (base, *others)]
    assert len(set(map(id, views))) == len(views)
    storage = torch.arange(16.0, dtype=torch.float64).view(torch.uint8)
    for view in views:
        shown = view.over(storage)
        assert geometry_of(shown) == view.geometry
        assert intern(Geometry(*msgspec.structs.astuple(view.geometry))) is view


def test_a_view_shows_the_storage_that_came_back():
    buffer, spec = Buffer(1, X.clone()), intern(MATRIX)
    assert torch.equal(buffer.view(spec), X.view(3, 4))
    buffer.release()
    buffer.restore(-X)
    assert torch.equal(buffer.view(spec), -X.view(3, 4))
    assert buffer.view(spec) is buffer.view(intern(contiguous(3, 4)))


def test_what_is_known_of_an_op_is_of_one_kind_of_device():
    name = "aten::_scaled_dot_product_flash_attention_for_cpu.default"
    for kind in ("cpu", "cuda", "cpu", "cuda"):
        if kind == "cpu":
            assert ops.resolve(name, kind).base == "_scaled_dot_product_flash_attention_for_cpu"
        else:
            with pytest.raises(ProgramError, match="no kernel"):
                ops.resolve(name, kind)
    overloads = [ops.resolve(f"aten::add.{o}", "cpu").overload for o in ("Tensor", "out", "Tensor")]
    assert overloads[0] is overloads[2] is torch.ops.aten.add.Tensor
    assert overloads[1] is torch.ops.aten.add.out


def test_an_op_that_is_registered_later_is_refused():
    ops.resolve("aten::add.Tensor", "cpu")
    library = torch.library.Library("aten", "FRAGMENT")
    library.define("jgpu_came_later(Tensor x) -> Tensor")
    with pytest.raises(ProgramError, match="is no op of this torch"):
        ops.resolve("aten::jgpu_came_later.default", "cpu")


@pytest.mark.filterwarnings("ignore:_aminmax is deprecated:UserWarning")
def test_contracts_leave_their_tensors_as_they_were():
    calls = [call for found in seeds(False).values() for call in found]
    for op, geometries in calls:
        try:
            info = ops.resolve(op.name, "cpu")
            language.check(info, bind(op, info, CPU), list(geometries))
        except ProgramError:  # kernels of CUDA, and ops whose numbers may be tensors
            continue
    for geometry in {g for _, geometries in calls for g in geometries}:
        assert geometry_of(language._meta(geometry)) == geometry


def test_a_workspace_is_of_the_layer_that_was_asked_for():
    sizes = [(3, 2, 4, 5), (2, 3, 4, 5), (3, 2, 5, 4)]
    layers = [(False, 1, False, True), (True, 1, False, True), (False, 1, False, False)]
    dtypes = [torch.float32]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # by this processor
        dtypes.append(torch.bfloat16)
    calls = [
        (*size, dtype, plain) for size, plain, dtype in itertools.product(sizes, layers, dtypes)
    ]
    truth = {call: recurrent._workspace.__wrapped__(*call) for call in calls}
    for seed in range(2):
        random.Random(seed).shuffle(calls)
        for call in calls:
            assert recurrent._workspace(*call) == truth[call]


def scaled(factor, flags=None):
    sketch = Sketch(inputs=1, flags=flags)
    sketch.op("mul.Tensor", sketch.seen(0, contiguous(12)), factor, outs=[contiguous(12)])
    return sketch.bytes()


def test_what_differs_in_anything_has_an_entry_of_its_own():
    cache = DefinitionCache("cpu")
    factors = [2, 3, 2.0, -0.0, 0.0]
    for factor in factors * 2:
        definition = cache.define(scaled(factor))
        (found,) = definition.run(buffers(X), (), b"\1", b"", context()).outputs
        assert torch.equal(found, X * factor)
        assert torch.equal(found.signbit(), (X * factor).signbit())
    cache.define(scaled(2, Flags(mkldnn_enabled=False)))
    assert len(cache) == len(factors) + 1
    prober = Prober("cpu")
    seen = Slot(0, 0)
    questions = [
        (Op("aten::sum.dim_IntList", (seen, (0,), False), {}, ()), [MATRIX], (), Flags(), (4,)),
        (Op("aten::sum.dim_IntList", (seen, (1,), False), {}, ()), [MATRIX], (), Flags(), (3,)),
        (Op("aten::sum.dim_IntList", (seen, (0,), True), {}, ()), [MATRIX], (), Flags(), (1, 4)),
        (
            Op("aten::sum.dim_IntList", (seen, (0,), False), {}, ()),
            [contiguous(4, 3)],
            (),
            Flags(),
            (3,),
        ),
        (
            Op("aten::arange.default", (3,), {}, ()),
            [],
            (),
            Flags(default_dtype="float64"),
            (3,),
        ),
    ]
    for op, inputs, params, flags, shape in questions * 2:
        (found,), error = prober.probe(op, inputs, params, flags)
        assert error is None
        assert found.shape == shape
    assert len(prober) == len(questions)


def test_an_answer_for_want_of_memory_is_not_kept():
    prober = Prober("cpu")
    for error in (
        ("OutOfMemoryError", "CUDA out of memory."),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ):
        prober.remember(b"question", "", ((), error))
        assert prober.known(b"question", "") is None
    prober.remember(b"question", "", ((), ("RuntimeError", "no such shapes")))
    assert prober.known(b"question", "") is not None


class ShortAtFirst:
    """Does at once what is put aside; the first task finds no memory."""

    def __init__(self):
        self.flight = self
        self.short = True

    def begin(self, *who):
        if self.short:
            self.short = False
            raise MemoryError

    def put(self, session, task, then, whose=""):
        try:
            result = task()
        except Exception as error:
            result = error
        then(result)


def test_a_check_that_broke_down_is_made_again_and_a_bad_program_stays_bad(caplog):
    definitions = Definitions("cpu", ShortAtFirst())
    session = SimpleNamespace(number=1, owner=SessionOwner("user1"))
    good, bad, told = scaled(2), b"no program", []
    for data in (good, good, bad, bad, good):
        definitions.learn(session, data, told.append)
    assert [isinstance(verdict, ProgramError) for verdict in told] == [1, 0, 1, 1, 0]
    assert told[1] is told[4] is definitions.get(program_hash(good), "")
    assert told[2] is told[3]
    assert "broke down" in str(told[0])
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_what_is_refused_is_refused_in_any_order():
    names = ["add", "add_", "_foo", "__foo", "mm", "native_dropout", "_sample_dirichlet", "__"]
    truth = {name: refusal.__wrapped__(name) for name in names}
    for seed in range(3):
        random.Random(seed).shuffle(names)
        assert [refusal(name) for name in names] == [truth[name] for name in names]


def test_policies_are_those_of_the_start():
    first = known_policies()
    assert known_policies() is first
    assert {type(load_policy(name)).__name__ for name in ("fair", "fifo")} == {"Fair", "Fifo"}
    one, other = load_policy("pack"), load_policy("pack")
    assert one is not other


def test_attention_on_the_host_draws_nothing():
    """Though it is tagged so; it refuses to drop anything."""
    schema = ops.resolve("aten::_scaled_dot_product_flash_attention_for_cpu.default", "cpu")
    assert torch.Tag.nondeterministic_seeded in schema.overload.tags
    assert not schema.seeded
    x, before = torch.rand(1, 2, 3, 8), torch.get_rng_state()
    for causal in (False, True):
        schema.call(x, x, x, 0.0, causal)
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(RuntimeError, match="dropout > 0"):
        schema.call(x, x, x, 0.5)
