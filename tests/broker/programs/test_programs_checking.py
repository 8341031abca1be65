"""What is refused before anything runs: ops, arguments, geometries, contracts."""

import pytest
import torch
from sketch import CPU, Sketch, contiguous

from jgpu.broker.executor.programs import Buffer, RunContext, define
from jgpu.broker.executor.programs.checking import ops
from jgpu.broker.executor.programs.contracts import CONTRACTS
from jgpu.errors import ProgramError
from jgpu.wire.program import (
    CONJ,
    Complex,
    DeviceArgument,
    Dtype,
    Flags,
    GeneratorArg,
    Geometry,
    HostTensor,
    Layout,
    MemoryFormat,
    Param,
)
from jgpu.wire.vocabulary import CONTRACTED, is_internal

SQUARE = contiguous(4, 4)


def refused(name, *args, outs=(SQUARE,), inputs=1, params=(), geometry=SQUARE, match, **kwargs):
    sketch = Sketch(inputs=inputs, params=params)
    seen = [sketch.seen(k, geometry) for k in range(inputs)]
    sketch.op(name, *seen, *args, outs=outs, **kwargs)
    with pytest.raises(ProgramError, match=match):
        sketch.define()


@pytest.mark.parametrize(
    "name",
    [
        *("to_sparse.default", "_coalesced_.default", "quantize_per_tensor.default"),
        *("set_.source_Storage", "set_.source_Tensor", "_efficientzerotensor.default"),
        *("from_file.default", "_pin_memory.default", "record_stream.default"),
        *("_local_scalar_dense.default", "item.default", "is_nonzero.default"),
        *("_to_sparse.default", "to_mkldnn.default", "mkldnn_linear.default"),
        *("_nested_tensor_from_mask.default", "slow_conv3d.default", "t_.default"),
        *("transpose_.default", "as_strided_.default", "squeeze_.default", "data.default"),
        *("_copy_from.default", "requires_grad_.default", "slow_conv3d_forward.default"),
        *(
            "_assert_async.default",
            "_test_check_tensor.default",
            "cudnn_affine_grid_generator.default",
        ),
        *("miopen_rnn.default", "_make_dual.default", "_sobol_engine_draw.default"),
        *("_slow_conv2d_forward.default", "equal.default", "numel.default"),
        *("_masked_softmax_backward.default", "_masked_softmax.default"),
        *("_batch_norm_impl_index_backward.default", "embedding_backward.default"),
        *("_nested_view_from_buffer.default", "_triton_multi_head_attention.default"),
    ],
)
def test_ops_that_no_program_may_call(name):
    lacking = name == "numel.default" and "aten::numel" not in ops._registered()  # as torch 2.11
    refused(name, match="is no op of this torch" if lacking else "may not run here")


@pytest.mark.parametrize(
    "name",
    ["no_such_op.default", "add.NoSuchOverload", "__class__.default", "", ".", "add.Tensor.x"],
)
def test_names_that_are_no_ops(name):
    refused(name, match="is no op of this torch|may not run here")


@pytest.mark.parametrize("name", ["prims::add", "quantized::linear", "torch::x", "add.Tensor", ""])
def test_only_aten_ops_are_looked_up(name):
    with pytest.raises(ProgramError, match="only aten ops may"):
        ops.resolve(name, "cpu")


def test_every_registered_op_is_either_described_or_refused_with_a_sentence():
    described = 0
    for name in ops._registered():
        try:
            described += ops.resolve(name, "cpu").call is not None
        except ProgramError as error:
            described -= not str(error).endswith(".")
    assert described > 2000


def test_no_internal_op_runs_without_a_contract():
    without = 0
    for name in ops._registered():
        base = name.removeprefix("aten::").partition(".")[0]
        if is_internal(base) and base.removesuffix("_") not in CONTRACTS:
            with pytest.raises(ProgramError, match="may not run here"):
                ops.resolve(name, "cpu")
            without += 1
    assert without > 400


def test_both_ends_know_the_same_contracts():
    other = set(CONTRACTS) ^ CONTRACTED
    assert {name for name in other if hasattr(torch.ops.aten, name)} == set()
    assert set(CONTRACTS) <= CONTRACTED


def test_a_contract_that_is_gone_stops_an_op_whatever_the_names_say(monkeypatch):
    monkeypatch.delitem(CONTRACTS, "tanh_backward")
    sketch = Sketch(inputs=2)
    sketch.op("tanh_backward", sketch.seen(0, SQUARE), sketch.seen(1, SQUARE))
    with pytest.raises(ProgramError, match="has no contract"):
        sketch.define()


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        ((), {}, "misses its argument 'other'"),
        ((1, 2), {}, "takes 2 arguments, not 3"),
        ((1,), {"alpha": "x"}, "alpha must be of kind number, not str"),
        ((1,), {"alpha": None}, "alpha cannot be None"),
        ((1,), {"alpha": Dtype("float32")}, "not dtype"),
        ((1,), {"beta": 1}, "takes no argument 'beta'"),
        ((1,), {"other": 1}, "is given other twice"),
        ((DeviceArgument(),), {}, "other must be of kind tensor, not device"),
        (((1, 2),), {}, "other must be of kind tensor, not tuple"),
        ((GeneratorArg(),), {}, "not generatorarg"),
        ((None,), {}, "other cannot be None"),
    ],
)
def test_arguments_that_do_not_fit_the_schema(args, kwargs, match):
    refused("add.Tensor", *args, match=match, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"dtype": Dtype("quint8")}, "cannot use tensors of type"),
        ({"dtype": Dtype("__class__")}, "cannot use tensors of type"),
        ({"dtype": 6}, "dtype must be of kind dtype"),
        ({"layout": Layout("sparse_coo")}, "layout must be of kind layout"),
        ({"device": "cpu"}, "device must be of kind device"),
        ({"memory_format": MemoryFormat("x")}, "memory_format must be of kind"),
    ],
)
def test_options_that_torch_knows_and_programs_may_not_use(kwargs, match):
    refused("empty_like.default", match=match, **kwargs)


def test_sizes_beyond_64_bits_are_refused():
    refused("sum.dim_IntList", (1 << 63,), match="of kind ints")
    refused("sum.dim_IntList", (True,), match="of kind ints")
    refused("sum.dim_IntList", (1.0,), match="of kind ints")


def test_parameters_may_not_shape_anything():
    int_param, float_param = Param(0, "int"), Param(0, "float")
    kinds = ("int",)
    refused("select.int", int_param, 0, params=kinds, match="of kind int")
    refused("repeat.default", (int_param,), params=kinds, match="of kind ints")
    arange = {"params": kinds, "inputs": 0, "outs": (contiguous(3),)}
    refused("arange.default", int_param, match="may shape the result", **arange)
    refused("full.default", (4, 4), int_param, params=kinds, inputs=0, match="may shape")
    image = contiguous(1, 1, 4, 4)
    refused(
        *("upsample_nearest2d.default", (8, 8), float_param),
        geometry=image,
        params=("float",),
        match="may shape the result",
    )
    refused(
        *("arange.out", int_param),
        inputs=0,
        params=kinds,
        outs=(None,),
        match="misses its argument|may shape",
    )


def test_an_out_tensor_does_not_make_a_factory_take_parameters():
    sketch = Sketch(inputs=1, params=("int",))
    out = sketch.seen(0, contiguous(0))
    sketch.op("arange.start_out", 0, Param(0, "int"), 1, out=out, outs=[None])
    with pytest.raises(ProgramError, match="may shape the result"):
        sketch.define()


def test_views_stay_within_what_a_program_makes():
    sketch = Sketch(inputs=1)
    made = sketch.op("relu.default", sketch.seen(0, SQUARE), outs=[SQUARE])
    beyond = Geometry("float32", (4,), (1,), 13)
    sketch.op("relu.default", sketch.seen(made, beyond), outs=[contiguous(4)])
    with pytest.raises(ProgramError, match="looks at 68 bytes of slot 1, which has 64"):
        sketch.define()


def test_a_claim_does_not_make_a_slot_larger_than_it_is():
    sketch = Sketch(inputs=1)
    wide = contiguous(1 << 20)
    made = sketch.op("relu.default", sketch.seen(0, SQUARE), outs=[wide])
    sketch.op("relu.default", sketch.seen(made, wide), outs=[wide])
    definition = sketch.define()
    run = RunContext(CPU, {})
    for _ in range(2):
        outcome = definition.run([Buffer(0, torch.ones(4, 4))], (), b"\x03", b"", run)
        assert outcome.failures
        assert not any(isinstance(output, torch.Tensor) for output in outcome.outputs)


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry("float32", (1 << 61, 4), (4, 1)),
        Geometry("float32", (1 << 40,), (1 << 40,)),
        Geometry("float64", (2,), (1,), 1 << 61),
    ],
)
def test_geometries_larger_than_any_device(geometry):
    refused("relu.default", geometry=geometry, match="larger than any device")


def test_geometries_of_unknown_types():
    refused("relu.default", geometry=Geometry("quint8", (4,), (1,)), match="cannot use tensors")
    refused("relu.default", geometry=Geometry("float32", (4,), (1,), 0, CONJ), match="no conjugate")


def test_what_the_meta_kernel_refuses_is_refused():
    refused(
        "mm.default", inputs=2, geometry=contiguous(3, 4), match="does not take these arguments"
    )


def test_as_many_returns_as_the_op_has():
    refused("relu.default", outs=(SQUARE, SQUARE), match="returns 1 tensors, not 2")
    refused("relu.default", outs=(), match="returns 1 tensors, not 0")
    refused("sort.default", outs=(SQUARE,), match="returns 2 tensors, not 1")


def test_an_undefined_return_fills_no_slot():
    sketch = Sketch(inputs=3)
    image, weight, grad = contiguous(1, 1, 4, 4), contiguous(1, 1, 1, 1), contiguous(1, 1, 4, 4)
    seen = [sketch.seen(k, g) for k, g in enumerate((grad, image, weight))]
    plain = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True, True, False))
    outs = [image, weight, contiguous(1)]
    sketch.op("convolution_backward.default", *seen, *plain, outs=outs)
    with pytest.raises(ProgramError, match="returns nothing at place 2"):
        sketch.define()


def test_a_return_that_is_an_argument_shares_its_storage_or_fills_no_slot():
    sketch = Sketch(inputs=1)
    view = sketch.op("view.default", sketch.seen(0, SQUARE), (16,), outs=[contiguous(16)])
    sketch.op("add_.Tensor", sketch.seen(view, contiguous(16)), 1, outs=[None])
    definition = sketch.define()
    assert definition.slot_bytes() == (0,)
    for _ in range(2):
        buffer = Buffer(0, torch.zeros(4, 4))
        outcome = definition.run([buffer], (), b"\x01", b"", RunContext(CPU, {}))
        assert outcome.outputs[0].data_ptr() == buffer.base.data_ptr()
        assert torch.equal(buffer.base, torch.ones(4, 4))
    other = Sketch(inputs=1)
    other.op("view.default", other.seen(0, SQUARE), (16,), outs=[contiguous(4)])
    with pytest.raises(ProgramError, match="of another geometry"):
        other.define()


def test_a_view_that_shares_an_input_raises_what_the_input_must_have():
    sketch = Sketch(inputs=1)
    small = contiguous(2)
    view = sketch.op("view.default", sketch.seen(0, small), (2,), outs=[small])
    sketch.op("relu.default", sketch.seen(view, contiguous(32)), outs=[contiguous(32)])
    assert sketch.define().plan.least_bytes == (128,)


def test_host_tensors_have_the_bytes_they_say_and_are_never_written():
    good = HostTensor("int64", (2,), torch.tensor([1, 0]).numpy().tobytes())
    refused("add.Tensor", HostTensor("int64", (3,), good.data), match="24 bytes came with 16")
    sketch = Sketch(inputs=1)
    sketch.op("add_.Tensor", good, sketch.seen(0, SQUARE), outs=[None])
    with pytest.raises(ProgramError, match="self must be of kind tensor"):
        sketch.define()


def test_a_slot_that_is_resized_has_no_offsets_given_at_run_time():
    sketch = Sketch(inputs=1, params=("int",))
    small = contiguous(2)
    sketch.op("relu.default", sketch.seen(0, small, offset_param=0), outs=[small])
    out = sketch.seen(0, contiguous(0))
    sketch.op("arange.start_out", 0, 5, 1, out=out, outs=[None])
    with pytest.raises(ProgramError, match="no view whose offset is a parameter"):
        sketch.define()


def test_offsets_of_slots_that_a_program_makes_are_constant():
    sketch = Sketch(inputs=1, params=("int",))
    made = sketch.op("relu.default", sketch.seen(0, SQUARE), outs=[SQUARE])
    sketch.op("relu.default", sketch.seen(made, SQUARE, offset_param=0), outs=[SQUARE])
    with pytest.raises(ProgramError, match="only an input's offset"):
        sketch.define()


def test_unknown_flags_and_bytes_that_are_no_program():
    sketch = Sketch(inputs=1, flags=Flags(matmul_precision="lowest"))
    with pytest.raises(ProgramError, match="precision"):
        sketch.define()
    with pytest.raises(ProgramError, match="not a program"):
        define(b"\x00\x01", "cpu")


def test_complex_constants_and_numbers_for_tensors_are_arguments():
    sketch = Sketch(inputs=1)
    made = contiguous(4, 4, dtype="complex64")
    sketch.op("mul.Tensor", sketch.seen(0, SQUARE), Complex(0.0, 1.0), outs=[made])
    sketch.define()


def test_numbers_that_an_op_compares_with_each_other_may_be_parameters():
    for kinds in (("float", "float"), ("int", "float"), ("float", "int"), ("int", "int")):
        sketch = Sketch(inputs=1, params=kinds)
        low, high = (Param(k, kind) for k, kind in enumerate(kinds))
        sketch.op("histc.default", sketch.seen(0, SQUARE), 5, low, high, outs=[contiguous(5)])
        assert sketch.define().ops == 1
