"""Values that keep a kernel from coming to an end, or that kill it: what is done instead."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sketch import Sketch, all_live, buffers, context
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.programs.asking.probe import Prober
from jgpu.broker.executor.programs.checking.ops import resolve
from jgpu.broker.executor.programs.checking.trusted import Look
from jgpu.broker.executor.programs.geometry import geometry_of
from jgpu.broker.executor.programs.precautions import precaution_of
from jgpu.broker.executor.programs.precautions.orders import MOST_STEPS
from jgpu.errors import ProgramError
from jgpu.wire.program import Op, Slot

F64 = torch.float64
NAN, INF = float("nan"), float("inf")


def outcome(name, *args, out=None, **kwargs):
    """Run one op, compiled where it can be: its first result, or the text of its failure."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    sketch, left = Sketch(len(tensors)), iter(range(len(tensors)))
    filled = [
        sketch.seen(next(left), geometry_of(arg)) if isinstance(arg, torch.Tensor) else arg
        for arg in args
    ]
    made = geometry_of(torch.empty_like(tensors[0]) if out is None else out)
    sketch.op(name, *filled, outs=(made,), **kwargs)
    definition = sketch.define()
    for _ in range(2):
        run = definition.run(buffers(*tensors), (), b"\1", b"", context())
    return run.failures[0].text if run.failures else run.outputs[0]


def test_a_count_that_is_nan_draws_nan_and_the_others_as_natively():
    count, p = torch.tensor([NAN, 7.0, 30.0, 5.0]), torch.tensor([0.3, 0.4, 0.5, NAN])
    found = outcome("binomial.default", count, p)
    assert found.isnan().tolist() == [True, False, False, True]
    native = torch.binomial(
        torch.where(count.isnan(), 0, count), p, torch.Generator().manual_seed(3)
    )
    assert torch.equal(found[1:3], native[1:3])


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("laguerre_polynomial_l", 0.3),
        ("legendre_polynomial_p", -0.3),
        *((f"chebyshev_polynomial_{kind}", 1 + 2**-52) for kind in "tuvw"),
        *((f"shifted_chebyshev_polynomial_{kind}", 1 + 2**-52) for kind in "tuvw"),
    ],
)
def test_an_order_that_takes_longer_than_minutes_is_refused(name, x):
    tensor = torch.full((4,), x, dtype=F64)
    for order in (1e12, torch.tensor([1e12, 1e12, NAN, 1e12], dtype=F64)):
        overload = "n_scalar" if isinstance(order, float) else "default"
        text = outcome(f"special_{name}.{overload}", tensor, order)
        assert f"special_{name} would take about" in text
        assert str(MOST_STEPS) in text


@pytest.mark.parametrize("kind", "tuvw")
def test_a_plain_number_is_looked_at_in_the_type_that_the_kernel_computes_in(kind):
    """Just above 1 in double precision, where the values take 38 billion steps to overflow."""
    name, x = f"special_chebyshev_polynomial_{kind}.x_scalar", 1 + 2**-52
    text = outcome(name, x, torch.tensor([3.0, 1e12], dtype=F64))
    assert f"special_chebyshev_polynomial_{kind} would take about" in text
    single = torch.tensor([3.0, 1e12])  # there it is 1
    native = getattr(torch.special, f"chebyshev_polynomial_{kind}")(1.0, single)
    assert torch.equal(outcome(name, x, single), native)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_an_order_beside_whole_numbers_is_not_cut_to_their_bits(dtype):
    x = torch.tensor([0, 1, 2, 1], dtype=dtype).repeat(72)
    for order in ((1 << 31) - 1, 1 << 40):
        text = outcome("special_legendre_polynomial_p.n_scalar", x, order, out=torch.empty(288))
        assert "special_legendre_polynomial_p would take about" in text
    native = torch.special.legendre_polynomial_p(x, 300)
    found = outcome("special_legendre_polynomial_p.n_scalar", x, 300, out=native)
    assert torch.equal(found.nan_to_num(7.0), native.nan_to_num(7.0))


def test_complex_numbers_are_refused_by_the_kernels_without_a_warning():
    x = torch.ones(2, dtype=torch.complex64)
    text = outcome("special_chebyshev_polynomial_t.n_scalar", x, 3)
    assert "ComplexFloat" in text
    assert "ComplexFloat" in outcome("polygamma.default", 2, x)


@pytest.mark.parametrize("kind", "tuvw")
@pytest.mark.parametrize("x", [0.3, 1.0, -1.0, 2.0, INF])
def test_huge_orders_of_chebyshev_that_take_no_time_are_computed(kind, x):
    tensor = torch.tensor([x], dtype=F64)
    native = getattr(torch.special, f"chebyshev_polynomial_{kind}")(tensor, 1e12)
    found = outcome(f"special_chebyshev_polynomial_{kind}.n_scalar", tensor, 1e12)
    assert torch.equal(found, native) or (found.isnan().all() and native.isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("order", [0, 1, 2, 5, 30])
@pytest.mark.parametrize(
    "name",
    [
        *(f"{kind}chebyshev_polynomial_{c}" for kind in ("", "shifted_") for c in "tuvw"),
        *("laguerre_polynomial_l", "legendre_polynomial_p"),
    ],
)
def test_a_polynomial_of_nan_is_nan_and_no_number_from_elsewhere(name, order, dtype):
    x = torch.tensor([NAN] * 8 + [0.5], dtype=dtype)
    found = outcome(f"special_{name}.n_scalar", x, order)
    native = getattr(torch.special, name)(x, order)
    assert found[:8].isnan().all() if order >= 2 else torch.equal(found[:8], native[:8]) or order
    assert found[8] == native[8]


def test_zeta_far_below_zero_is_refused_but_not_at_its_poles():
    deep = torch.tensor([-1e12 - 0.5, 1.0], dtype=F64)
    two = torch.tensor([2.0, 2.0], dtype=F64)
    assert "special_zeta would take about 1.0e+12 steps" in outcome(
        "special_zeta.default", two, deep
    )
    # A number, which is a whole one in single precision alone.
    by_number = "special_zeta.other_scalar"
    assert "special_zeta would take about" in outcome(by_number, two, -1e12 - 0.5)
    single = two.float()
    assert torch.equal(outcome(by_number, single, -1e12 - 0.5), torch.special.zeta(single, -1e12))
    poles = torch.tensor([-1e12, 1.0], dtype=F64)
    assert torch.equal(outcome("special_zeta.default", two, poles), torch.special.zeta(two, poles))
    assert "polygamma would take" in outcome("polygamma.default", 2, deep)
    assert torch.equal(outcome("polygamma.default", 1, deep), torch.polygamma(1, deep))


@given(decimals=st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-400, 400))
def test_decimals_past_the_largest_number_change_nothing(decimals):
    x = torch.tensor([0.0, 12.3456, -1e300, NAN, INF], dtype=F64)
    found = outcome("round.decimals", x, decimals=decimals)
    native = torch.round(x, decimals=min(max(decimals, -2000), 2000))
    assert torch.equal(found.nan_to_num(7.0), native.nan_to_num(7.0))
    assert torch.equal(found.isnan(), native.isnan())


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["_linalg_eigvals", "linalg_eigvals"])
def test_eigenvalues_of_what_is_not_finite_are_refused_as_by_eig(name, value):
    matrix = torch.eye(30)
    matrix[3, 4] = value
    result = torch.empty(30, dtype=torch.complex64)
    assert "infs or NaNs" in outcome(f"{name}.default", matrix, out=result)


@pytest.mark.parametrize(
    ("name", "args", "word"),
    [
        ("matrix_power.default", (-(1 << 63),), "least integer"),
        ("adaptive_max_pool2d.default", ((1 << 31, 0),), "output_size"),
        ("_adaptive_avg_pool2d.default", ((1 << 40, 0),), "output_size"),
        ("tensor_split.sections", (1 << 40,), "would return"),
        ("combinations.default", (1 << 31,), "r is at most"),
        ("replication_pad2d.default", ((-2, -2, 1, 1 << 32),), "places"),
        ("reflection_pad2d.default", ((-2, -2, 1, 1 << 32),), "places"),
        ("_upsample_bicubic2d_aa.default", ((1, 1), False, 1e-12, 1e-12), "does not lead"),
        ("_upsample_bilinear2d_aa.default", ((1, 1), False, 1e-12, 1e-12), "does not lead"),
    ],
)
def test_plain_numbers_are_refused_before_anything_is_tried(name, args, word):
    shape = (5,) if "combinations" in name else (3, 3) if "power" in name else (1, 1, 4, 4)
    sketch = Sketch(1)
    sketch.op(name, sketch.seen(0, geometry_of(torch.empty(shape))), *args)
    with pytest.raises(ProgramError, match=word):
        sketch.define()
    with pytest.raises(ProgramError, match=word):
        Prober("cpu").probe(Op(f"aten::{name}", (Slot(0, 0), *args), {}, ()),
                            [geometry_of(torch.empty(shape))])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "given", "dtype", "word"),
    [
        ("round.decimals_out", (), {"decimals": 1 << 31}, torch.float32, "at most 1024"),
        ("range.out", (2, 2, 0.5), {}, torch.int8, "0.5, which is 0 in torch.int8"),
        ("range.out", (2, 2, -0.5), {}, torch.int64, "-0.5, which is 0"),
    ],
)
def test_plain_numbers_beside_a_given_result_are_refused_too(name, args, given, dtype, word):
    sketch = Sketch(2)
    result = geometry_of(torch.empty(0, dtype=dtype))
    inputs = (sketch.seen(0, geometry_of(torch.empty(3))),) if "round" in name else args
    sketch.op(name, *inputs, out=sketch.seen(1, result), **given)
    with pytest.raises(ProgramError, match=word):
        sketch.define()


def test_sizes_of_a_random_pooling_are_no_less_than_zero():
    image, samples = torch.empty(1, 2, 6, 5, 4), torch.empty(1, 2, 3)
    for kernel, size in (((-(1 << 63), 2, 2), (2, 2, 2)), ((2, 2, 2), (2, -1, 2))):
        sketch = Sketch(2)
        seen = sketch.seen(0, geometry_of(image)), sketch.seen(1, geometry_of(samples))
        sketch.op("fractional_max_pool3d.default", seen[0], kernel, size, seen[1])
        with pytest.raises(ProgramError, match="size is"):
            sketch.define()


@pytest.mark.parametrize("padding", [1, 2])
@pytest.mark.parametrize("interpolation", [0, 1, 2])
def test_a_grid_that_leads_nowhere_has_no_gradient_and_others_have_theirs(interpolation, padding):
    torch.manual_seed(2)
    image, grid = torch.randn(2, 3, 5, 5, dtype=F64), torch.rand(2, 5, 5, 2, dtype=F64) * 3 - 1.5
    name, numbers = "grid_sampler_2d_backward.default", (interpolation, padding, False)
    native = torch.ops.aten.grid_sampler_2d_backward(image, image, grid, *numbers, (True, True))
    sketch = Sketch(2)
    seen = [sketch.seen(k, geometry_of(x)) for k, x in enumerate((image, grid))]
    outs = tuple(map(geometry_of, native))
    sketch.op(name, seen[0], seen[0], seen[1], *numbers, (True, True), outs=outs)
    definition = sketch.define()
    run = definition.run(buffers(image, grid), (), all_live(definition), b"", context())
    assert all(map(torch.equal, run.outputs, native))
    grid[1, 2, 3, 0], grid[0, 0, 0] = NAN, NAN
    for _ in range(2):
        run = definition.run(buffers(image, grid), (), all_live(definition), b"", context())
        assert torch.equal(run.outputs[1].isnan(), grid.isnan())
        assert run.outputs[0].isfinite().all()


def test_repetitions_whose_sum_wraps_around_are_refused():
    many = torch.tensor([(1 << 63) - 1, 1 << 20, (1 << 63) - 1])
    sketch = Sketch(2)
    seen = sketch.seen(0, geometry_of(many)), sketch.seen(1, geometry_of(torch.empty(0).long()))
    sketch.op("repeat_interleave.Tensor_out", seen[0], out=seen[1])
    run = sketch.define().run(buffers(many, torch.empty(0).long()), (), b"", b"", context())
    assert "repeats add up to 1.84e+19" in run.failures[0].text


def test_a_tensor_of_one_place_seen_often_is_not_taken_apart():
    seen = geometry_of(torch.empty(1).expand(1 << 40))
    for name, args in (("unbind.int", ()), ("split.Tensor", (1,)), ("chunk.default", (1 << 40,))):
        sketch = Sketch(1)
        sketch.op(name, sketch.seen(0, seen), *args)
        with pytest.raises(ProgramError, match="would return"):
            sketch.define()


def test_probes_take_the_same_precautions():
    """Scratch tensors hold zeros, but plain numbers are the client's."""
    prober = Prober("cpu")
    ones = geometry_of(torch.empty(4, dtype=F64))
    op = Op("aten::special_laguerre_polynomial_l.x_scalar", (0.3, Slot(0, 0)), {}, ())
    assert prober.probe(op, [ones])[1] is None  # orders of zero
    op = Op("aten::special_zeta.other_scalar", (Slot(0, 0), -1e12 - 0.5), {}, ())
    assert prober.probe(op, [ones])[0] == (ones,)  # what the meta kernel says


@pytest.mark.parametrize("apart", ["weight", "bias", "running_mean", "running_var"])
def test_vectors_that_lie_apart_come_dense_to_kernels_of_cuda(apart):
    info = resolve("aten::native_batch_norm", "cuda-on-host")
    given = {name: torch.rand(3) for name in ("weight", "bias", "running_mean", "running_var")}
    given |= {"input": torch.rand(4, 3), "training": False, "momentum": 0.1, "eps": 1e-5}

    def precaution(device):
        tensors = {k: geometry_of(v) for k, v in given.items() if isinstance(v, torch.Tensor)}
        return precaution_of(info, Look(given | tensors), device)

    assert precaution("cuda") is precaution("cpu") is None
    given[apart] = torch.rand(1).expand(3)
    assert precaution("cpu") is None
    seen = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.extend(arg for arg in args if isinstance(arg, torch.Tensor))
            return func(*args, **kwargs or {})

    with Seen():
        precaution("cuda")(*(given[argument.name] for argument in info.arguments))
    assert len(seen) == 6  # one of them twice: to be copied, and dense
    assert all(each.is_contiguous() for each in seen[1:])
    assert sum(torch.equal(each, given[apart]) for each in seen if each.dim() == 1) == 2
