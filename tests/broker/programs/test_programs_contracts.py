"""Contracts hold: what internal ops are fed natively passes, anything smaller does not."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder import Recorder
from sketch import CPU, Sketch, all_live, buffers, contiguous
from test_programs_replay import LOSSES, OPTIMIZERS, SEQUENCE, X, Y, classify, cnn, mlp, trainer
from torch import nn

from jgpu.broker.executor.programs import Buffer, RunContext, contracts
from jgpu.broker.executor.programs.checking import foretold, ops
from jgpu.broker.executor.programs.checking.arguments import bind
from jgpu.broker.executor.programs.checking.check import check_op
from jgpu.broker.executor.programs.checking.guards import IndexGuard, clamped
from jgpu.broker.executor.programs.checking.trusted import Look, guards_of
from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.broker.executor.programs.running.compile import compile_plan
from jgpu.broker.executor.programs.running.notes import ValueNotes
from jgpu.errors import ProgramError
from jgpu.wire.program import Dtype, Geometry, Op, Slot, slots_of
from jgpu.wire.vocabulary import is_internal

CONTEXT = RunContext(CPU, {})
IMAGES = torch.linspace(-1, 1, 4 * 3 * 64).view(4, 3, 8, 8).sin()


def steps():
    """One step of many models, which together call most internal ops."""
    weight = nn.ParameterList([nn.Parameter(torch.linspace(-1, 1, 48).view(6, 8))])
    for name in (
        "bags",
        "largest in bags",
        "lengths",
        "bounds",
        "embedding",
        "ctc",
        "margins",
        "segmented",
        "fourier",
        "weighted",
    ):
        yield trainer(weight, lambda m, name=name: LOSSES[name](m[0]))
    for name in ("adam-fused", "adagrad-fused", "sgd-fused", "adam-foreach"):
        yield trainer(mlp(), classify, OPTIMIZERS[name])
    yield trainer(
        cnn(),
        lambda m: F.cross_entropy(
            m(torch.cat([IMAGES] * 4, 2)[:, :, :16, :8].repeat(1, 1, 1, 2)), Y[:4]
        ),
    )
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.AdaptiveMaxPool2d(3))
    yield trainer(layers, lambda m: m(IMAGES).sum())
    yield trainer(nn.LSTM(8, 6), lambda m: m(SEQUENCE)[0].sum())
    yield trainer(nn.LSTM(8, 6, bias=False), lambda m: m(SEQUENCE)[0].sum())
    yield evaluated(nn.TransformerEncoderLayer(8, 2, 6, batch_first=True))
    heads = nn.MultiheadAttention(8, 2, batch_first=True)
    yield evaluated(heads, lambda m: m(SEQUENCE, SEQUENCE, SEQUENCE))
    yield lambda: torch.histogramdd(X[:, :2], [3, 4], weight=X[:, 2].abs())
    yield lambda: torch.histogramdd(X[:, :2], [X[0].sort()[0], X[1].sort()[0]])
    norms = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    yield trainer(norms, lambda m: m(X).pow(2).sum())

    def attention(model):
        heads = model(SEQUENCE).view(5, 3, 3, 4, 2).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*heads).sum()

    yield trainer(nn.Linear(8, 24), attention)


def evaluated(model, call=lambda m: m(SEQUENCE)):
    """Inference, for which transformers have fused ops of their own."""
    model.eval()

    def step():
        with torch.no_grad():
            call(model)

    return step


@pytest.fixture(scope="module")
def calls():
    """Every internal call of the steps, each as a program of its own: (program, op)."""
    torch.manual_seed(1)
    found = {}
    for step in steps():
        step()
        with Recorder() as recorder:
            step()
        recorder.recording()
        for op in recorder.program.ops:
            if is_internal(op.name.removeprefix("aten::").partition(".")[0]) and any(slots_of(op)):
                found.setdefault(op.name, (recorder.program, op))
    return found


def alone(program, op, change=None):
    """The op as a program: one input per tensor argument, the geometry of one of them changed."""
    sketch = Sketch()
    slots = []

    def tensor(slot):
        geometry = program.geometries[program.views[slot.view].geometry]
        number = len(slots)
        if change is not None and change[0] == number:
            geometry = change[1](geometry)
        slots.append(geometry)
        return sketch.seen(number, geometry)

    def filled(arg):
        if isinstance(arg, Slot):
            return tensor(arg)
        return tuple(filled(a) for a in arg) if isinstance(arg, tuple) else arg

    args = [filled(arg) for arg in op.args]
    kwargs = {name: filled(arg) for name, arg in op.kwargs.items()}
    outs = [None if out.slot < 0 else program.geometries[out.geometry] for out in op.outs]
    sketch.inputs = sketch.made = len(slots)
    sketch.op(op.name.removeprefix("aten::"), *args, outs=outs, **kwargs)
    return sketch, slots


def test_the_native_calls_keep_their_contracts(calls):
    assert len(calls) > 35
    for program, op in calls.values():
        sketch, _ = alone(program, op)
        assert sketch.define().ops == 1


def smaller(geometry):
    """One dimension less long."""
    shape = list(geometry.shape)
    if shape and max(shape) > 1:
        shape[shape.index(max(shape))] -= 1
    return contiguous(*shape, dtype=geometry.dtype)


def flat(geometry):
    """Fewer dimensions and elements."""
    return contiguous(1, dtype=geometry.dtype)


def squeezed(geometry):
    """All elements in one place."""
    return Geometry(geometry.dtype, geometry.shape, (0,) * len(geometry.shape))


@pytest.mark.parametrize("change", [smaller, flat, squeezed])
def test_a_smaller_tensor_is_refused_or_the_kernel_gets_by(calls, change):
    """Whatever passes the check is run under canaries: the bytes around every tensor stay."""
    refused = run = 0
    for name, (program, op) in calls.items():
        _, slots = alone(program, op)
        for number in range(len(slots)):
            try:
                sketch, geometries = alone(program, op, (number, change))
                definition = sketch.define()
            except ProgramError:
                refused += 1
                continue
            run += 1
            inside_canaries(name, definition, geometries)
    assert refused > run / 4


def inside_canaries(name, definition, geometries):
    """Run amid two patterns of foreign bytes: they stay, and what comes out does not tell them."""
    results = []
    for canary in (0xA5, 0x3C):
        blocks = []
        for nbytes in definition.plan.least_bytes[: len(geometries)]:
            block = torch.full((nbytes + 8192,), canary, dtype=torch.uint8)
            block[4096 : 4096 + nbytes] = 0
            blocks.append(block)
        bufs = [
            Inside(k, block, nbytes)
            for k, (block, nbytes) in enumerate(
                zip(blocks, definition.plan.least_bytes, strict=True)
            )
        ]
        run = RunContext(CPU, {0: torch.Generator().manual_seed(1)})
        outcome = definition.run(bufs, (), all_live(definition), b"", run)
        for block, nbytes in zip(blocks, definition.plan.least_bytes, strict=True):
            assert (block[:4096] == canary).all(), name
            assert (block[4096 + nbytes :] == canary).all(), name
        made = [t for t in outcome.outputs if isinstance(t, torch.Tensor)]
        results.append([block[4096:-4096] for block in blocks] + made)
    if name != "aten::mkldnn_rnn_layer.default":  # leaves a part of its workspace unset
        for one, other in zip(*results, strict=True):
            assert torch.equal(one, other) or torch.equal(one.isnan(), other.isnan()), name


class Inside(Buffer):
    """A buffer that is the middle of a block; bounds were checked, so views may start there."""

    def __init__(self, number, block, nbytes):
        super().__init__(number, block, nbytes)
        self.block = block

    def view(self, spec):
        typed = self.block.view(spec.dtype)
        return typed.as_strided(spec.shape, spec.stride, spec.offset + 4096 // spec.dtype.itemsize)


GUARDED = {
    "nll_loss_backward": (
        lambda s, g: s.op(
            "nll_loss_backward.default",
            *(s.seen(0, contiguous()), s.seen(1, contiguous(4, 3)), s.seen(2, g), None, 1, -100),
            s.seen(3, contiguous()),
            outs=[contiguous(4, 3)],
        ),
        [torch.ones(()), torch.rand(4, 3), None, torch.ones(())],
        (torch.tensor([0, 2, 1, -100]), torch.tensor([0, 3, 1, 2]), torch.tensor([0, -1, 1, 2])),
    ),
    "embedding_dense_backward": (
        lambda s, g: s.op(
            "embedding_dense_backward.default",
            *(s.seen(0, contiguous(4, 2)), s.seen(1, g), 5, -1, False),
            outs=[contiguous(5, 2)],
        ),
        [torch.rand(4, 2), None],
        (torch.tensor([0, 4, 1, 2]), torch.tensor([0, 5, 1, 2]), torch.tensor([0, -2, 1, 2])),
    ),
    "segment_reduce": (
        lambda s, g: s.op(
            "segment_reduce.default",
            s.seen(0, contiguous(6, 2)),
            "sum",
            lengths=s.seen(1, g),
            outs=[contiguous(4, 2)],
        ),
        [torch.rand(6, 2), None],
        (torch.tensor([1, 2, 0, 3]), torch.tensor([7, 0, 0, 0]), torch.tensor([1, -1, 3, 3])),
    ),
    "_segment_reduce_backward": (
        lambda s, g: s.op(
            "_segment_reduce_backward.default",
            *(s.seen(0, contiguous(3)), s.seen(1, contiguous(3)), s.seen(2, contiguous(6)), "sum"),
            offsets=s.seen(3, g),
            outs=[contiguous(6)],
        ),
        [torch.rand(3), torch.rand(3), torch.rand(6), None],
        (torch.tensor([0, 2, 2, 6]), torch.tensor([0, 2, 2, 7]), torch.tensor([-1, 2, 2, 6])),
    ),
    "max_pool2d_with_indices_backward": (
        lambda s, g: s.op(
            "max_pool2d_with_indices_backward.default",
            *(s.seen(0, contiguous(1, 1, 2, 2)), s.seen(1, contiguous(1, 1, 4, 4))),
            *(
                (2, 2),
                (2, 2),
                (0, 0),
                (1, 1),
                False,
                s.seen(2, contiguous(1, 1, 2, 2, dtype="int64")),
            ),
            outs=[contiguous(1, 1, 4, 4)],
        ),
        [torch.rand(1, 1, 2, 2), torch.rand(1, 1, 4, 4), None],
        (
            torch.tensor([[[[0, 2], [8, 15]]]]),
            torch.tensor([[[[0, 2], [8, 16]]]]),
            torch.tensor([[[[0, 2], [-5, 15]]]]),
        ),
    ),
}


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("earlier_runs", [0, 1])
def test_index_values_that_a_kernel_would_trust_are_looked_at(name, earlier_runs):
    write, tensors, (good, *bad) = GUARDED[name]
    sketch = Sketch(inputs=len(tensors))
    write(sketch, contiguous(4, dtype="int64"))
    definition = sketch.define()

    def run(index):
        bufs = [Buffer(k, (index if t is None else t).clone()) for k, t in enumerate(tensors)]
        return definition.run(bufs, (), b"\x01", b"", RunContext(CPU, {}))

    for _ in range(1 + earlier_runs):
        assert run(good).failures == []
    for index in bad:
        (failure,) = run(index).failures
        assert failure.error == "IndexError"
        assert "is not in [0, " in failure.text


def test_lengths_that_add_up_to_more_than_there_is_are_looked_at():
    data, lengths = contiguous(2, 6), contiguous(2, 3, dtype="int64")
    sketch = Sketch(inputs=2)
    seen = sketch.seen(0, data), "sum"
    plain = {"lengths": sketch.seen(1, lengths), "axis": 1, "unsafe": True}
    sketch.op("segment_reduce.default", *seen, **plain, outs=[contiguous(2, 3)])
    definition = sketch.define()

    def run(rows):
        return definition.run(
            buffers(torch.rand(2, 6), torch.tensor(rows)), (), b"\x01", b"", CONTEXT
        )

    assert run([[1, 2, 3], [6, 0, 0]]).failures == []
    (failure,) = run([[1, 2, 3], [6, 1, 0]]).failures
    assert failure.text == "aten::segment_reduce.default: lengths sum up to more than 6."


def noted(notes):
    """The ops whose values were wrong."""
    said = [bool(byte) for block in notes.blocks for byte in block.bytes()]
    return [note.op for note, wrong in zip(notes.taken, said, strict=False) if wrong]


@pytest.mark.parametrize("rows", [[[1, 2, 3], [6, 1, 0]], [[1, 2, 3], [1 << 62, 1 << 62, 1]]])
def test_on_cuda_a_row_of_lengths_that_is_too_long_becomes_empty(rows):
    notes = ValueNotes(CPU)
    guard = IndexGuard("lengths", 0, 7, most=6)
    safe = clamped("aten::segment_reduce", torch.tensor(rows), guard, notes, 0)
    assert safe[0].tolist() == [1, 2, 3]
    assert int(safe[1].sum()) <= 6
    assert noted(notes) == [0]


@pytest.mark.parametrize(
    ("index", "flagged"),
    [([0, 4, -5], False), ([0, 5, 1], True), ([-6, 0, 0], True)],
)
def test_on_cuda_an_index_is_clamped_and_the_op_is_noted(index, flagged):
    index = torch.tensor(index)
    notes = ValueNotes(CPU)
    guard = IndexGuard("indices", -5, 5)
    safe = clamped("aten::index.Tensor", index, guard, notes, 2)
    assert noted(notes) == [2] * flagged
    assert safe.dtype == index.dtype
    assert safe.tolist() == [i if -5 <= i < 5 else -5 for i in index.tolist()]
    # each op that was wrong is noted
    clamped("aten::index.Tensor", torch.tensor([9]), guard, notes, 7)
    clamped("aten::index.Tensor", torch.tensor([1]), guard, notes, 8)
    assert noted(notes) == [2] * flagged + [7]


def test_a_compiled_function_passes_clamped_indices_on():
    table, long = contiguous(4, 2), contiguous(3, dtype="int64")
    sketch = Sketch(inputs=2)
    indices = (None, sketch.seen(1, long))
    sketch.op("index.Tensor", sketch.seen(0, table), indices, outs=[contiguous(4, 3)])
    plan = sketch.define().plan
    guards = (IndexGuard("indices", -2, 2, None, 1),)
    plan = replace(plan, steps=(replace(plan.steps[0], guards=guards),))
    variant = compile_plan(plan, [True] * 3, set(), clamps=True)
    x, notes = torch.rand(4, 2), ValueNotes(CPU)
    mark = memoryview(bytearray(8)).cast("q")
    (made,) = variant.written.function([x, torch.tensor([1, -2, 1])], (), {}, notes, None, mark)
    assert torch.equal(made, x[:, torch.tensor([1, 0, 1])])
    assert noted(notes) == []
    (made,) = variant.written.function([x, torch.tensor([1, 7, 1])], (), {}, notes, None, mark)
    assert torch.equal(made, x[:, torch.tensor([1, 0, 1])])
    assert noted(notes) == [0]


def rules(name, **arguments):
    return [(g.argument, g.low, g.high, g.place) for g in guards_of(name, Look(arguments), "cuda")]


def test_on_cuda_public_index_ops_are_guarded_too():
    table, index = contiguous(5, 3), contiguous(4, dtype="int64")
    mask = contiguous(5, dtype="bool")
    assert rules("index_select", self=table, dim=1, index=index) == [("index", 0, 3, -1)]
    assert rules("scatter_add_", self=table, dim=-2, index=index) == [("index", 0, 5, -1)]
    assert rules("embedding", weight=table, indices=index) == [("indices", 0, 5, -1)]
    assert rules("take", self=table, index=index) == [("index", -15, 15, -1)]
    assert rules("index", self=table, indices=[None, index]) == [("indices", -3, 3, 1)]
    assert rules("index_put_", self=table, indices=[mask, index]) == [("indices", -3, 3, 1)]
    assert rules("nll_loss_forward", self=table, target=index, ignore_index=-100) == [
        ("target", 0, 3, -1)
    ]
    assert rules("relu", self=table) == []
    assert guards_of("embedding", Look({"weight": table, "indices": index}), "cpu") == ()


HEADS, PAIRS = contiguous(2, 3, 5, 8), contiguous(2, 3, 5)
PADDED = contiguous(2, 3, 32)
#: as the efficient kernel makes it: all heads of a place lie together
TOGETHER = Geometry("float32", (2, 3, 5, 8), (120, 8, 24, 1))
STATE = contiguous(1, dtype="int64")
PHILOX = contiguous(2, dtype="uint64")
ON_CUDA = {
    "flash": (
        "_scaled_dot_product_flash_attention_backward",
        [HEADS] * 5 + [PAIRS, PHILOX, STATE],
        lambda s: (*s[:6], None, None, 5, 5, 0.0, True, *s[6:]),
    ),
    "efficient": (
        "_scaled_dot_product_efficient_attention_backward",
        [*[HEADS] * 4, TOGETHER, PADDED, STATE, STATE],
        lambda s: (*s[:4], None, *s[4:], 0.0, (True, True, True, False)),
    ),
    "lstm cell": (
        "_thnn_fused_lstm_cell",
        [contiguous(2, 12), contiguous(2, 12), contiguous(2, 3), *[contiguous(12)] * 2],
        lambda s: tuple(s),
    ),
    "gru cell": (
        "_thnn_fused_gru_cell",
        [contiguous(2, 9), contiguous(2, 9), contiguous(2, 3), *[contiguous(9)] * 2],
        lambda s: tuple(s),
    ),
}


@pytest.mark.parametrize("name", ON_CUDA)
def test_contracts_of_ops_that_only_cuda_has(name):
    base, geometries, arrange = ON_CUDA[name]
    op = Op(f"aten::{base}.default", arrange([Slot(k, k) for k in range(len(geometries))]), {}, ())
    info = ops._describe(op.name, base, getattr(torch.ops.aten, base).default)
    bound = bind(op, info, CPU)
    contracts.check(info, bound, geometries)
    for k, geometry in enumerate(geometries):
        if geometry is STATE:
            continue
        for change in (smaller, flat):
            with pytest.raises(ProgramError, match="may not run like this"):
                contracts.check(
                    info, bound, [*geometries[:k], change(geometry), *geometries[k + 1 :]]
                )


@pytest.mark.parametrize("biases", [[], [contiguous(9)] * 2])
def test_a_cell_of_cuda_without_a_meta_kernel_that_can_say_passes_its_contract(biases):
    """Torch has none for GRU (`programs.foretold` has); LSTM's trips over missing biases.

    From torch 2.14 on it does not.
    """
    meta = torch.empty(2, 12, device="meta")
    try:
        torch.ops.aten._thnn_fused_lstm_cell(meta, meta, meta[:, :3])
        trips = False
    except AttributeError:
        trips = True
    for base, gates in (("_thnn_fused_gru_cell", 3), ("_thnn_fused_lstm_cell", 4)):
        wide = contiguous(2, 3 * gates)
        rows = [wide, wide, contiguous(2, 3), *[contiguous(3 * gates) for _ in biases]]
        op = Op(f"aten::{base}.default", tuple(Slot(k, k) for k in range(len(rows))), {}, ())
        info = ops._describe(op.name, base, getattr(torch.ops.aten, base).default)
        inferred = check_op(op, info, bind(op, info, CPU), [(g, 4096) for g in rows])
        assert (inferred is None) == (gates == 4 and not biases and trips)


def test_what_torch_2_11_has_no_meta_kernel_for_is_foretold_as_it_comes():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    attention, first, second = layer.self_attn, layer.norm1, layer.norm2
    given = (
        *(torch.rand(2, 5, 8), 8, 2, attention.in_proj_weight, attention.in_proj_bias),
        *(attention.out_proj.weight, attention.out_proj.bias, False, False, 1e-5),
        *(first.weight, first.bias, second.weight, second.bias),
        *(layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias),
    )
    calls = {"_transformer_encoder_layer_fwd": given, "_standard_gamma": (torch.rand(4, 3).t(),)}
    for name, arguments in calls.items():
        with torch.no_grad():
            made = getattr(torch.ops.aten, name)(*arguments)
        told = foretold._KERNELS[name](arguments[0].to("meta"), *arguments[1:])
        assert geometry_of(told) == geometry_of(made)


def weight_norm(sketch, norms, dim):
    seen = sketch.seen(0, contiguous(3, 4)), sketch.seen(1, norms)
    sketch.op("_weight_norm.default", *seen, dim, outs=[contiguous(3, 4)])
    return sketch.define()


def test_a_weight_norm_has_a_norm_for_each_row_or_column():
    assert weight_norm(Sketch(inputs=2), contiguous(3, 1), 0).ops == 1
    assert weight_norm(Sketch(inputs=2), contiguous(1, 4), 1).ops == 1
    for norms, dim in ((contiguous(1, 1), 0), (contiguous(3, 1), 1), (contiguous(), 0)):
        with pytest.raises(ProgramError, match="g has shape"):
            weight_norm(Sketch(inputs=2), norms, dim)


@pytest.mark.parametrize("mode", [-1, 3, 40])
def test_bags_of_no_known_mode_are_refused(mode):
    """Torch 2.11 reads past its tensors' ends then."""
    sketch = Sketch(inputs=3)
    seen = [sketch.seen(0, contiguous(6, 8))]
    seen += [sketch.seen(at, contiguous(many, dtype="int64")) for at, many in ((1, 6), (2, 2))]
    outs = [contiguous(2, 8), *[contiguous(many, dtype="int64") for many in (6, 2, 2)]]
    sketch.op("_embedding_bag.default", *seen, False, mode, outs=outs)
    with pytest.raises(ProgramError, match="its mode is unknown"):
        sketch.define()


def test_a_weight_norm_of_nothing_is_refused():
    """The kernel divides by the number of rows."""
    sketch = Sketch(inputs=2)
    seen = sketch.seen(0, contiguous(0, 4)), sketch.seen(1, contiguous(0, 1))
    sketch.op("_weight_norm.default", *seen, 0, outs=[contiguous(0, 4)])
    with pytest.raises(ProgramError, match="v is empty"):
        sketch.define()


@pytest.mark.parametrize(
    ("size", "stride", "fits"),
    [((4, 3), (3, 1), True), ((6,), (2,), True), ((12,), (2,), False), ((4, 4), (2, 1), True),
     ((4, 4), (3, 1), False), ((5, 3), (3, 1), False), ((2,), (-1,), False), ((2, 2), (1,), False)],
)  # fmt: skip
def test_a_reshaped_alias_looks_at_what_the_tensor_spans(size, stride, fits):
    sketch = Sketch(inputs=1)
    seen = sketch.seen(0, contiguous(3, 4))
    claim = Geometry("float32", size, stride)
    sketch.op("_reshape_alias.default", seen, size, stride, outs=[claim])
    if fits:
        assert sketch.define().ops == 1
    else:
        with pytest.raises(ProgramError):
            sketch.define()


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=3),
    other=st.lists(st.integers(0, 5), min_size=0, max_size=3),
    dim=st.integers(-3, 3),
)
def test_softmax_backward_takes_two_tensors_of_one_shape(shape, other, dim):
    sketch = Sketch(inputs=2)
    seen = sketch.seen(0, contiguous(*shape)), sketch.seen(1, contiguous(*other))
    dtype = Dtype("float32")
    sketch.op("_log_softmax_backward_data.default", *seen, dim, dtype, outs=[contiguous(*shape)])
    dims = max(len(shape), 1)
    if shape == other and -dims <= dim < dims:
        sketch.define()
    else:
        with pytest.raises(ProgramError):
            sketch.define()
