"""Probes, the cache of definitions, buffers and views."""

import pytest
import torch
from sketch import CPU, Sketch, contiguous

from jgpu.broker.executor.programs import Buffer, DefinitionCache, Prober
from jgpu.broker.executor.programs.flags import gate
from jgpu.broker.executor.programs.geometry import geometry_of, intern, is_dense, required_bytes
from jgpu.errors import ProgramError
from jgpu.wire.messages import TOO_LARGE
from jgpu.wire.program import CONJ, NEG, DeviceArgument, Dtype, Flags, Geometry, Op, Param, Slot

SQUARE = contiguous(4, 4)
PLAIN = (None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)


def op(name, *args, **kwargs):
    return Op(f"aten::{name}", args, kwargs, ())


def seen(count):
    return [Slot(k, k) for k in range(count)]


def test_a_probe_tells_the_kernel_s_own_layout():
    image = Geometry("float32", (2, 3, 8, 8), (192, 1, 24, 3))
    question = op("convolution.default", *seen(2), *PLAIN)
    inputs = [image, contiguous(4, 3, 3, 3)]
    (output,), error = Prober("cpu").probe(question, inputs)
    assert error is None
    assert output == Geometry("float32", (2, 4, 6, 6), (144, 1, 24, 4))
    # shapes alone know no better
    (output,), error = Prober("null").probe(question, inputs)
    assert output == contiguous(2, 4, 6, 6)


def test_a_probe_tells_what_is_undefined_and_what_is_an_argument():
    grads = [contiguous(1, 1, 4, 4), contiguous(1, 1, 4, 4), contiguous(1, 1, 1, 1)]
    mask = (True, True, False)
    question = op("convolution_backward.default", *seen(3), *PLAIN, mask)
    outputs, error = Prober("cpu").probe(question, grads)
    assert error is None
    assert outputs[2] is None
    assert outputs[0] == grads[1]
    assert Prober("cpu").probe(op("relu_.default", *seen(1)), [SQUARE]) == ((None,), None)


def test_a_probe_has_the_op_s_error_as_native_torch_words_it():
    outputs, error = Prober("cpu").probe(op("mm.default", *seen(2)), [contiguous(3, 4)] * 2)
    assert outputs == ()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot") as native:
        torch.mm(torch.ones(3, 4), torch.ones(3, 4))
    assert error == ("RuntimeError", str(native.value))


def test_zeros_that_an_op_does_not_like_are_no_error():
    question = op("linalg_cholesky.default", *seen(1))
    outputs, error = Prober("cpu").probe(question, [SQUARE])
    assert error is None
    assert outputs[0].shape == (4, 4)


def test_what_is_too_large_to_try_is_inferred():
    prober = Prober("cpu", most_bytes=1 << 20)
    large = contiguous(1 << 20)
    assert prober.probe(op("relu.default", *seen(1)), [large]) == ((large,), None)
    _, error = prober.probe(op("nonzero.default", *seen(1)), [large])
    assert "too large" in error[1]


@pytest.mark.parametrize("device", ["cpu", "null"])
def test_what_is_inferred_is_so_under_the_question_s_switches_whoever_ran_last(device):
    question, numbers = op("copysign.Tensor", *seen(2)), [contiguous(5, 4, dtype="int64")] * 2
    for dtype in ("float64", "float32", "float64"):
        prober = Prober(device, most_bytes=64)
        ((output,), error) = prober.probe(question, numbers, flags=Flags(default_dtype=dtype))
        assert error is None
        assert output == contiguous(5, 4, dtype=dtype)
        with gate.passing(Flags()):  # somebody else's run
            assert torch.get_default_dtype() is torch.float32


@pytest.mark.skipif(
    torch._C._dispatch_has_kernel_for_dispatch_key("aten::_histogramdd_from_bin_cts", "Meta"),
    reason="torch foretells it from 2.14 on",
)
def test_what_numbers_alone_make_too_large_is_not_tried():
    """No meta kernel foretells it: histograms of so many bins would be some other user's memory."""
    prober = Prober("cpu", most_bytes=1 << 20)
    name, points = "_histogramdd_from_bin_cts.default", contiguous(5, 2)
    for bins, error in (((1 << 9, 1 << 10), (TOO_LARGE, "It is too large to be tried.")),
                        ((1 << 8, 1 << 9), None)):  # fmt: skip
        assert prober.probe(op(name, *seen(1), bins), [points])[1] == error


def test_probes_are_checked_as_programs_are():
    prober = Prober("cpu")
    with pytest.raises(ProgramError, match="may not run here"):
        prober.probe(op("from_file.default", "/etc/passwd"), [])
    with pytest.raises(ProgramError, match="before it is made"):
        prober.probe(op("relu.default", Slot(1, 0)), [SQUARE])
    with pytest.raises(ProgramError, match="view that is not in the table"):
        prober.probe(op("relu.default", Slot(0, 3)), [SQUARE])
    with pytest.raises(ProgramError, match="is not declared"):
        prober.probe(op("mul.Tensor", *seen(1), Param(0, "float")), [SQUARE])
    trusting = op("_log_softmax_backward_data.default", *seen(2), 1, Dtype("float32"))
    with pytest.raises(ProgramError, match="has shape"):
        prober.probe(trusting, [SQUARE, contiguous(4, 3)])
    with pytest.raises(ProgramError, match="precision"):
        prober.probe(op("relu.default", *seen(1)), [SQUARE], (), Flags(matmul_precision="x"))


def test_probes_take_parameters_generators_and_one_storage_twice():
    prober = Prober("cpu")
    assert prober.probe(op("mul.Tensor", *seen(1), Param(0, "complex")), [SQUARE], ((0.0, 1.0),))[0]
    assert prober.probe(op("native_dropout.default", *seen(1), 0.5, True), [SQUARE])[1] is None
    assert prober.probe(op("add.Tensor", Slot(0, 0), Slot(0, 0)), [SQUARE])[1] is None
    options = {"dtype": Dtype("float32"), "device": DeviceArgument()}
    assert prober.probe(op("randn.default", (3,), **options), []) == ((contiguous(3),), None)


def test_answers_are_remembered_and_the_memory_is_bounded():
    prober = Prober("cpu", most=4)
    first = prober.probe(op("relu.default", *seen(1)), [SQUARE])
    assert prober.probe(op("relu.default", *seen(1)), [SQUARE]) == first
    for size in range(10):
        prober.probe(op("relu.default", *seen(1)), [contiguous(size)])
    assert len(prober) == 4


def program(size):
    sketch = Sketch(inputs=1)
    sketch.op("relu.default", sketch.seen(0, contiguous(size)), outs=[contiguous(size)])
    return sketch.bytes()


def test_the_cache_keeps_what_was_used_last():
    cache = DefinitionCache("cpu", most=3)
    first = cache.define(program(1))
    assert cache.define(program(1)) is first
    for size in (2, 3):
        cache.define(program(size))
    assert cache.get(first.hash) is first
    cache.define(program(4))
    assert len(cache) == 3
    assert cache.get(first.hash) is first
    assert cache.get(cache.define(program(2)).hash) is not None
    assert cache.get(b"0" * 16) is None
    assert {definition.ops for definition in cache} == {1}


def test_the_cache_is_bounded_in_bytes_too():
    size = len(program(1))
    cache = DefinitionCache("cpu", most_bytes=3 * size)
    for k in range(1, 8):
        cache.define(program(k))
    assert len(cache) == 3
    assert cache.nbytes <= 3 * size


def test_a_definition_that_is_added_twice_is_one():
    cache = DefinitionCache("cpu")
    first = cache.define(program(1))
    other = DefinitionCache("cpu").define(program(1))
    assert cache.add(other, 100) is first
    assert len(cache) == 1


def test_views_of_a_buffer_are_made_once_and_few_are_kept():
    buffer = Buffer(0, torch.arange(16.0))
    specs = [intern(Geometry("float32", (2,), (1,), k)) for k in range(12)]
    assert intern(Geometry("float32", (2,), (1,), 3)) is specs[3]
    assert buffer.view(specs[0]) is buffer.view(specs[0])
    for k, spec in enumerate(specs):
        assert buffer.view(spec).tolist() == [k, k + 1]
    assert len(buffer._views) <= 8
    base = buffer.release()
    assert base.tolist() == list(range(16))
    assert len(buffer._views) == 0
    with pytest.raises(RuntimeError, match="not on the device"):
        buffer.view(specs[0])
    buffer.restore(base)
    assert buffer.view(specs[1]).tolist() == [1, 2]


def test_views_reinterpret_conjugate_and_negate():
    buffer = Buffer.allocate(5, 16, CPU)
    assert buffer.bytes().tolist() == [0] * 16
    buffer.view(intern(contiguous(2, dtype="complex64"))).fill_(1 + 2j)
    conjugate = Geometry("complex64", (2,), (1,), 0, CONJ)
    assert torch.equal(buffer.view(intern(conjugate)), torch.tensor([1 - 2j, 1 - 2j]))
    negative = Geometry("float32", (2,), (2,), 1, NEG)
    assert buffer.view(intern(negative)).tolist() == [-2.0, -2.0]
    assert geometry_of(buffer.view(intern(negative))) == negative


@pytest.mark.parametrize(
    ("geometry", "nbytes", "dense"),
    [
        (contiguous(2, 3), 24, True),
        (Geometry("float32", (3, 2), (1, 3)), 24, True),
        (Geometry("float32", (2, 3), (6, 1), 1), 40, False),
        (Geometry("float64", (4,), (0,)), 8, False),
        (Geometry("int8", (0, 4), (4, 1), 9), 0, True),
        (Geometry("float32", (), (), 2), 12, True),
        (Geometry("float32", (2, 2), (1, 1)), 12, False),
    ],
)
def test_bytes_and_density_of_geometries(geometry, nbytes, dense):
    assert required_bytes(geometry) == nbytes
    assert is_dense(geometry) == dense
