"""Random ops of the device on the host: what they return, read and leave alone."""

import math
import typing

import pytest
import torch

from jgpu.broker.executor.devices.onhost.kernels import DRAWS, KERNELS, DeviceAssert, Philox
from jgpu.broker.executor.devices.onhost.kernels.tables import named

SEED, OFFSET = 20_261, 16
INT64 = torch.iinfo(torch.int64)


def op(name):
    (found,) = named(name)
    return found


def run(name, *args, draw=None, **kwargs):
    return KERNELS[op(name)](draw or Philox(SEED, OFFSET), *args, **kwargs)


def some(*shape, dtype=torch.float32):
    return torch.linspace(0.05, 0.95, math.prod(shape)).view(shape).to(dtype)


#: query, key and value
HEADS = [some(2, 3, 6, 8, dtype=torch.float16) for _ in range(3)]
#: Arguments for every op that draws, by name; a tuple of them, each perhaps with keywords.
CALLS = {
    "uniform_": (some(70, 9), -2.0, 5.0),
    "normal_": (some(70, 9), 3.0, 0.5),
    "log_normal_": (some(70, 9), 0.1, 0.5),
    "exponential_": (some(70, 9), 0.7),
    "cauchy_": (some(70, 9), 0.5, 2.0),
    "geometric_": (some(70, 9), 0.3),
    "bernoulli_.float": (some(70, 9), 0.3),
    "bernoulli_.Tensor": (torch.zeros(70, 9), some(70, 9)),
    "random_.from": (torch.zeros(70, 9, dtype=torch.int32), -5, 1000),
    "random_.to": (torch.zeros(70, 9, dtype=torch.int64), 1 << 40),
    "random_": (torch.zeros(70, 9, dtype=torch.int64),),
    "bernoulli": (some(70, 9),),
    "normal.Tensor_float": (some(70, 9), 2.0),
    "normal.float_Tensor": (3.0, some(70, 9)),
    "normal.Tensor_Tensor": (some(70, 1), some(70, 9)),
    "normal.float_float": (3.0, 2.0, [70, 9]),
    "rand": ([70, 9],),
    "randn": ([70, 9],),
    "randint": (1000, [70, 9]),
    "randint.low": (-5, 1 << 40, [70, 9]),
    "rand_like": (some(70, 9),),
    "randn_like": (some(70, 9),),
    "randint_like": (some(70, 9), 1000),
    "randint_like.low_dtype": (some(70, 9), -5, 1000),
    "randint_like.Tensor": (some(70, 9), torch.tensor(1000)),
    "randperm": (630,),
    "multinomial": (some(70, 9), 4),
    "poisson": (some(70, 9) * 40,),
    "binomial": (torch.full((70, 9), 50.0), some(70, 9)),
    "_standard_gamma": (some(70, 9) * 4,),
    "_sample_dirichlet": (some(70, 9) * 4,),
    "native_dropout": (some(70, 9), 0.4, True),
    "_fused_dropout": (some(70, 9), 0.4),
    "dropout": (some(70, 9), 0.4, True),
    "dropout_": (some(70, 9), 0.4, True),
    "alpha_dropout": (some(70, 9), 0.4, True),
    "alpha_dropout_": (some(70, 9), 0.4, True),
    "feature_dropout": (some(70, 9, 2), 0.4, True),
    "feature_dropout_": (some(70, 9, 2), 0.4, True),
    "feature_alpha_dropout": (some(70, 9, 2), 0.4, True),
    "feature_alpha_dropout_": (some(70, 9, 2), 0.4, True),
    "rrelu_with_noise": (some(70, 9) - 0.5, torch.zeros(70, 9), 0.1, 0.3, True),
    "rrelu_with_noise_": (some(70, 9) - 0.5, torch.zeros(70, 9), 0.1, 0.3, True),
    "_scaled_dot_product_attention_math": (*HEADS, None, 0.25),
    "_scaled_dot_product_flash_attention": (*HEADS, 0.25),
    "_scaled_dot_product_efficient_attention": (*HEADS, None, True, 0.25),
    "_scaled_dot_product_cudnn_attention": (*HEADS, None, True, 0.25),
    "_flash_attention_forward": (*HEADS, None, None, 6, 6, 0.25, False, False),
    "_efficient_attention_forward": (*HEADS, None, None, None, None, None, 0.25, 0, True),
    "_cudnn_attention_forward": (*HEADS, None, None, None, 6, 6, True, 0.25),
    "rrelu_with_noise_functional": (some(70, 9) - 0.5, torch.zeros(70, 9), 0.1, 0.3, True),
}
#: Overloads without arguments here: the op whose arguments they take.
LIKE = {
    "uniform": "uniform_", "normal_functional": "normal_", "normal": "normal_",
    "log_normal": "log_normal_", "exponential": "exponential_", "cauchy": "cauchy_",
    "geometric": "geometric_", "bernoulli.p": "bernoulli_.float",
    "bernoulli.float": "bernoulli_.float", "bernoulli.Tensor": "bernoulli_.Tensor",
    "random.from": "random_.from", "random.to": "random_.to", "random": "random_",
}  # fmt: skip
#: Of what shape and type the result is where it is not that of the first tensor.
OUTS = {
    "multinomial": torch.empty(70, 4, dtype=torch.int64),
    "randperm": torch.empty(630, dtype=torch.int64),
    "randint": torch.empty(70, 9, dtype=torch.int64),
    "randint.low": torch.empty(70, 9, dtype=torch.int64),
}


def plain_name(each):
    """The op's name without the suffixes for a generator or an `out`."""
    base, words = each._schema.name[6:], each._overloadname.split("_")
    left = "_".join(word for word in words if word not in ("", "default", "generator", "out"))
    if base == "randint_like" and left == "low":
        left = "low_dtype"
    # the one overload whose name such a word is part of
    left = "low_dtype" if each._overloadname == "low_generator_dtype" else left
    return f"{base}.{left}" if left else base


def call_of(each):
    """Make arguments for an op of the table."""
    name = plain_name(each)
    name = LIKE.get(name, name)
    arguments = {argument.name: argument for argument in each._schema.arguments}
    keywords = {}
    generator = arguments.get("generator")
    if generator is not None and generator.kwarg_only and not generator.has_default_value():
        keywords["generator"] = None
    if "out" in arguments:
        result = OUTS.get(name, torch.empty(70, 9))
        dtype = CALLS[name][0].dtype if name.startswith("random_") else result.dtype
        keywords["out"] = torch.empty(result.shape, dtype=dtype)
    if "out0" in arguments:
        keywords |= {"out0": torch.empty(70, 9), "out1": torch.empty(70, 9, dtype=torch.bool)}
    if each._schema.name == "aten::_fused_dropout" and "out1" in keywords:
        keywords["out1"] = torch.empty(70, 9, dtype=torch.uint8)
    args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in CALLS[name]]
    return args, keywords


class Watched(Philox):
    """Notes which blocks a kernel reads: pairs of a thread and a counter."""

    read: typing.ClassVar = []

    def blocks(self, threads, turns):
        first = torch.as_tensor(turns, dtype=torch.int64) + self.offset // 4
        for pair in torch.stack(torch.broadcast_tensors(threads, first), -1).view(-1, 2).tolist():
            self.read.append(tuple(pair))
        return super().blocks(threads, turns)


@pytest.mark.parametrize("each", sorted(DRAWS, key=str), ids=str)
def test_a_launch_reads_only_what_its_increment_covers_and_nothing_twice(each):
    args, keywords = call_of(each)
    moved = DRAWS[each](*args, **keywords)
    Watched.read = []
    KERNELS[each](Watched(SEED, OFFSET), *args, **keywords)
    assert moved > 0
    assert moved % 4 == 0
    counters = [counter for _, counter in Watched.read]
    assert min(counters) >= OFFSET // 4
    assert max(counters) < (OFFSET + moved) // 4
    assert len(set(Watched.read)) == len(Watched.read)


@pytest.mark.parametrize("each", sorted(DRAWS, key=str), ids=str)
def test_the_same_launch_draws_the_same_and_the_next_one_others(each):
    def drawn(draw):
        args, keywords = call_of(each)
        made = KERNELS[each](draw, *args, **keywords)
        made = made if isinstance(made, tuple) else (made,)
        return [part for part in made if isinstance(part, torch.Tensor)]

    args, keywords = call_of(each)
    draw = Philox(SEED, OFFSET)
    before = torch.get_rng_state()
    first, again = drawn(draw), drawn(draw)
    other = drawn(draw.after(DRAWS[each](*args, **keywords)))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(before, torch.get_rng_state()), "it drew from the host's own generator"


def test_every_op_that_draws_has_a_kernel_here():
    """Except ops that become others, and ops that this device never gets."""
    elsewhere = {
        # composites that torch takes apart into ops of the table
        "gru", "lstm", "rnn_relu", "rnn_tanh", "rrelu", "rrelu_", "scaled_dot_product_attention",
        # drawn from a state among their arguments, or from none
        "_cudnn_init_dropout_state", "_cudnn_rnn", "_fused_sdp_choice",
        "_fill_mem_eff_dropout_mask_",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        # other backends' and nested tensors' own
        "_lstm_mps", "miopen_rnn", "_scaled_dot_product_attention_math_for_mps",
        "_scaled_dot_product_fused_attention_overrideable", "_triton_scaled_dot_attention",
        "_nested_tensor_softmax_with_shape", "_flash_attention_forward_no_dropout_inplace",
        "_cudnn_attention_forward_no_dropout_inplace",
    }  # fmt: skip
    missing = set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or base in elsewhere or "names" in overload or "quantized" in overload:
            continue
        each = getattr(getattr(torch.ops.aten, base), overload or "default", None)
        if each and torch.Tag.nondeterministic_seeded in each.tags and each not in DRAWS:
            missing.add(name)
    assert missing == set()


# -- distributions -------------------------------------------------------------------------------

COUNT = 50_000
#: name, arguments after the tensor, mean, variance; of the tensor's type
MOMENTS = [
    ("uniform_", (-2.0, 4.0), torch.float32, 1.0, 3.0),
    ("uniform_", (0.0, 1.0), torch.float64, 0.5, 1 / 12),
    ("uniform_", (0.0, 1.0), torch.bfloat16, 0.5, 1 / 12),
    ("normal_", (3.0, 0.5), torch.float32, 3.0, 0.25),
    ("normal_", (-1.0, 2.0), torch.float64, -1.0, 4.0),
    ("log_normal_", (0.0, 0.5), torch.float32, math.exp(0.125), (math.e**0.25 - 1) * math.e**0.25),
    ("exponential_", (0.5,), torch.float32, 2.0, 4.0),
    ("geometric_", (0.25,), torch.float32, 4.0, 12.0),
    ("geometric_", (0.25,), torch.int64, 4.0, 12.0),
    ("bernoulli_.float", (0.3,), torch.float32, 0.3, 0.21),
    ("bernoulli_.float", (0.3,), torch.bool, 0.3, 0.21),
    ("random_.from", (-3, 8), torch.int32, 2.0, 10.0),
    ("random_.from", (0, 1 << 40), torch.float64, 2.0**39, 2.0**80 / 12),
    ("random_", (), torch.bool, 0.5, 0.25),
]


def close_to(made, mean, variance):
    """Within five standard errors of a mean, and eight percent of a variance."""
    made = made.to(torch.float64)
    assert abs(float(made.mean()) - mean) < 5 * math.sqrt(variance / made.numel()) + 2e-3 * abs(
        mean
    )
    assert abs(float(made.var()) / variance - 1) < 0.08


@pytest.mark.parametrize(("name", "parameters", "dtype", "mean", "variance"), MOMENTS)
def test_a_distribution_has_its_mean_and_its_variance(name, parameters, dtype, mean, variance):
    close_to(run(name, torch.zeros(COUNT, dtype=dtype), *parameters), mean, variance)


@pytest.mark.parametrize("rate", [0.3, 4.0, 9.9, 10.1, 55.0, 20_000.0])
def test_poisson_has_its_mean_and_its_variance(rate):
    made = run("poisson", torch.full((COUNT,), rate, dtype=torch.float64))
    close_to(made, rate, rate)
    assert bool((made == made.floor()).all())


@pytest.mark.parametrize(
    ("count", "chance"), [(7, 0.4), (30, 0.2), (30, 0.8), (1000, 0.35), (1000, 0.9), (10**9, 1e-9)]
)
def test_binomial_has_its_mean_and_its_variance(count, chance):
    counts = torch.full((COUNT,), float(count), dtype=torch.float64)
    made = run("binomial", counts, torch.tensor(chance, dtype=torch.float64))
    close_to(made, count * chance, count * chance * (1 - chance))
    assert float(made.min()) >= 0
    assert float(made.max()) <= count


def test_binomial_at_its_ends():
    counts = torch.tensor([5.0, 5.0, 0.0, -1.0, math.nan, 5.0])
    chances = torch.tensor([0.0, 1.0, 0.5, 0.5, 0.5, math.nan])
    made = run("binomial", counts, chances)
    torch.testing.assert_close(
        made, torch.tensor([0.0, 5.0, 0.0, 0.0, math.nan, math.nan]), equal_nan=True
    )


@pytest.mark.parametrize("alpha", [0.2, 0.9, 1.0, 3.5, 80.0])
def test_gamma_has_its_mean_and_its_variance(alpha):
    made = run("_standard_gamma", torch.full((COUNT,), alpha, dtype=torch.float64))
    close_to(made, alpha, alpha)


def test_dirichlet_adds_up_to_one_with_its_means():
    alphas = torch.tensor([0.5, 2.0, 7.5], dtype=torch.float64)
    made = run("_sample_dirichlet", alphas.expand(COUNT, 3))
    torch.testing.assert_close(made.sum(-1), torch.ones(COUNT, dtype=torch.float64))
    torch.testing.assert_close(made.mean(0), alphas / 10, atol=4e-3, rtol=0)


@pytest.mark.parametrize(("count", "replacement"), [(1, False), (1, True), (7, True)])
def test_multinomial_draws_in_proportion(count, replacement):
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0])
    made = run("multinomial", weights.expand(COUNT, 4), count, replacement)
    assert made.shape == (COUNT, count)
    found = made.flatten().bincount(minlength=4) / made.numel()
    torch.testing.assert_close(found, weights / 8, atol=8e-3, rtol=0)


def test_multinomial_without_replacement_draws_nothing_twice():
    made = run("multinomial", torch.ones(500, 6), 6)
    assert torch.equal(made.sort(-1).values, torch.arange(6).expand(500, 6))


def test_a_permutation_is_one_and_every_place_is_as_likely():
    made = torch.stack([run("randperm", 8, draw=Philox(k, 0)) for k in range(4000)])
    assert torch.equal(made.sort(-1).values, torch.arange(8).expand(4000, 8))
    torch.testing.assert_close(
        made.to(torch.float64).mean(0), torch.full((8,), 3.5, dtype=torch.float64), atol=0.2, rtol=0
    )


def test_cauchy_has_its_quartiles():
    made = run("cauchy_", torch.zeros(COUNT), 1.0, 2.0)
    found = made.quantile(torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0, 3.0]), atol=0.1, rtol=0)


# -- whole numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [1, 7, (1 << 28) - 1, 1 << 28, (1 << 40) + 3, (1 << 62) + 5])
def test_whole_numbers_are_the_drawn_bits_modulo_the_range(span):
    draw = Philox(SEED, OFFSET)
    blocks = draw.blocks(torch.arange(64), 0).tolist()
    wide = span >= 1 << 28
    drawn = [(block[0] << 32) | block[1] if wide else block[0] for block in blocks]
    made = run("random_.from", torch.zeros(64, dtype=torch.int64), -9, span - 9)
    assert made.tolist() == [each % span - 9 for each in drawn]


def test_a_range_of_more_than_half_of_all_numbers_is_uniform_too():
    made = run("random_.from", torch.zeros(COUNT, dtype=torch.int64), INT64.min, INT64.max)
    close_to(made.to(torch.float64) / 2.0**64, 0.0, 1 / 12)
    blocks = Philox(SEED, OFFSET).blocks(torch.arange(64), 0).tolist()
    drawn = [(block[0] << 32) | block[1] for block in blocks]
    assert made[:64].tolist() == [each % ((1 << 64) - 1) + INT64.min for each in drawn]


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(torch.int8, 127), (torch.uint8, 255), (torch.int16, 32767), (torch.float16, 2048),
     (torch.bfloat16, 256), (torch.bool, 1)],
)  # fmt: skip
def test_without_a_range_a_type_is_filled_from_nothing_to_its_last_number(dtype, most):
    made = run("random_", torch.zeros(COUNT * 2, dtype=dtype)).to(torch.float64)
    assert (float(made.min()), float(made.max())) == (0.0, float(most))


def test_all_of_int64_is_drawn_from_its_least_number_on():
    made = run("random_.from", torch.zeros(COUNT, dtype=torch.int64), INT64.min, None)
    close_to(made.to(torch.float64) / 2.0**64, 0.0, 1 / 12)


# -- forms, layouts, errors ----------------------------------------------------------------------


def test_a_factory_draws_what_filling_its_tensor_draws():
    empty = torch.empty(31, 7)
    assert torch.equal(run("rand", [31, 7]), run("uniform_", empty.clone()))
    assert torch.equal(run("randn_like", empty), run("normal_", empty.clone()))
    whole = torch.empty(31, 7, dtype=torch.int64)
    assert torch.equal(run("randint", 99, [31, 7]), run("random_.from", whole, 0, 99))
    out = torch.empty(0)
    assert torch.equal(run("rand.out", [31, 7], out=out), out)
    assert torch.equal(out, run("rand", [31, 7]))


def test_a_factory_obeys_its_type():
    assert run("rand", [2], dtype=torch.float16).dtype is torch.float16
    assert run("randint", 4, [2]).dtype is torch.int64
    assert run("randint", 4, [2], dtype=torch.uint8).dtype is torch.uint8
    assert run("rand", [2], device=torch.device("cuda:0")).device.type == "cpu"
    assert run("randperm", 4, dtype=torch.int32).dtype is torch.int32


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_elements_are_numbered_as_they_lie_in_memory(layout):
    made = run("normal_", torch.empty(2, 3, 4, 5).to(memory_format=layout))
    plain = run("normal_", torch.empty(120))
    assert torch.equal(made.as_strided((120,), (1,)), plain)


def test_a_part_of_a_tensor_is_filled_and_the_rest_left():
    whole = torch.zeros(6, 8)
    run("uniform_", whole[::2, 1:], 1.0, 2.0)
    assert bool((whole[::2, 1:] >= 1).all())
    assert int(whole.count_nonzero()) == 21


def test_nothing_to_fill_moves_nothing_on():
    for name in ("uniform_", "normal_", "random_", "exponential_"):
        each = op(name)
        assert DRAWS[each](torch.empty(0, 3)) == 0
        assert run(name, torch.empty(0, 3)).shape == (0, 3)
    assert DRAWS[op("poisson")](torch.empty(0)) == 0


def test_complex_numbers_have_the_variance_in_both_parts():
    made = run("normal_", torch.empty(COUNT, dtype=torch.complex64), 3.0, 2.0)
    close_to(made.real, 3.0, 2.0)
    close_to(made.imag, 0.0, 2.0)


def test_of_complex_numbers_both_parts_are_uniform():
    empty = torch.empty(COUNT, dtype=torch.complex64)
    made = run("uniform_", empty, 2.0, 3.0)
    parts = torch.view_as_real(made)
    assert made is empty
    assert torch.equal(parts, run("uniform_", torch.empty(COUNT, 2), 2.0, 3.0))
    assert DRAWS[op("uniform_")](empty) == DRAWS[op("uniform_")](torch.empty(COUNT, 2))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("uniform_", (2.0, 1.0)), ("normal_", (0.0, -1.0)), ("exponential_", (-1.0,)),
     ("geometric_", (0.0,)), ("bernoulli_.float", (2.0,)), ("random_.from", (5, 5))],
)  # fmt: skip
def test_what_is_no_parameter_is_refused_in_torchs_words(name, parameters):
    native = getattr(torch.zeros(3), name.partition(".")[0])
    with pytest.raises(RuntimeError) as expected:
        native(*parameters)
    with pytest.raises(RuntimeError) as found:
        run(name, torch.zeros(3), *parameters)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("bernoulli", (torch.tensor([0.5, 2.0]),)),
        ("bernoulli", (torch.tensor([0.5, math.nan]),)),
        ("poisson", (torch.tensor([1.0, -1.0]),)),
        ("multinomial", (torch.tensor([1.0, -1.0]), 3, True)),
        ("multinomial", (torch.tensor([0.0, 0.0]), 3, True)),
    ],
)
def test_what_cuda_asserts_on_the_device_is_asserted(name, args):
    with pytest.raises(DeviceAssert, match="device-side assert triggered"):
        run(name, *args)


def test_the_type_of_a_result_is_looked_at_before_the_weights():
    out = torch.empty(0, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="expects Long tensor out, got: Double"):
        run("multinomial.out", torch.zeros(2), 1, False, out=out)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [math.nan, 1.0], [0.0, 0.0]])
def test_what_cuda_looks_at_on_the_host_is_an_error_there(weights):
    with pytest.raises(RuntimeError, match="probabilit"):
        run("multinomial", torch.tensor(weights), 1)


# -- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dropout_keeps_a_part_and_scales_it(dtype):
    given = some(100, 50, dtype=dtype).t()
    made, mask = run("native_dropout", given, 0.25, True)
    assert made.stride() == given.stride()
    assert mask.dtype is torch.bool
    assert abs(float(mask.double().mean()) - 0.75) < 0.03
    wide = given.double() * mask / 0.75
    torch.testing.assert_close(made.double(), wide, rtol=torch.finfo(dtype).eps * 2, atol=0)
    assert torch.equal(run("dropout", given, 0.25, True), made)


def test_dropout_that_drops_nothing_or_all_draws_nothing():
    given, each = some(5, 5), op("native_dropout")
    made, mask = run("native_dropout", given, 0.5, False)
    assert torch.equal(made, given)
    assert bool(mask.all())
    assert DRAWS[each](given, 0.5, False) == 0
    made, mask = run("native_dropout", given, 1.0, True)
    assert not bool(made.any() or mask.any())
    assert DRAWS[each](given, 1.0, True) == 0
    assert run("dropout", given, 0.5, False) is given


def test_feature_dropout_drops_whole_features_and_alpha_dropout_keeps_mean_and_variance():
    made = run("feature_dropout", torch.ones(30, 20, 3, 2), 0.5, True).flatten(2)
    assert torch.equal(made.amin(-1), made.amax(-1))
    assert set(made.unique().tolist()) == {0.0, 2.0}
    normal = run("normal_", torch.empty(COUNT))
    close_to(run("alpha_dropout", normal, 0.3, True, draw=Philox(1, 0)), 0.0, 1.0)


def test_random_slopes_are_what_the_noise_says():
    given, noise = some(40, 9) - 0.5, torch.zeros(40, 9)
    made = run("rrelu_with_noise", given, noise, 0.1, 0.3, True)
    assert torch.equal(made, given * noise)
    below = noise[given <= 0]
    assert 0.1 <= float(below.min()) < float(below.max()) <= 0.3
    assert bool((noise[given > 0] == 1).all())
    plain = run("rrelu_with_noise", given, noise, 0.1, 0.3, False)
    torch.testing.assert_close(plain, torch.nn.functional.leaky_relu(given, 0.2))
