"""Each op under CUDA's autocast gives the bits that the host's kernels give under the same casts.

The reference is native PyTorch on the host, with CUDA's lists of casts in place of the host's: an
op is cast where torch has a kernel of CUDA's autocast for it, by the policy that torch's header
names. All else (composites, derivatives, kernels) is torch's own.
"""

import functools
import warnings
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from jgpu.device.composed import autocast, innercasts

BRAIN, HALF = torch.bfloat16, torch.float16
KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


# -- CUDA's casts on the host --------------------------------------------------------------------


def eligible(value):
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def cast(values, to):
    return tree_map(lambda value: value.to(to) if eligible(value) else value, values)


def lower(op):
    return lambda *args, **named: op(*cast(args, low()), **cast(named, low()))


def full(op):
    return lambda *args, **named: op(*cast(args, torch.float32), **cast(named, torch.float32))


def low():
    return torch.get_autocast_dtype("cpu")


def accumulated(op):
    """A dtype for accumulation, where none is given."""
    names = [argument.name for argument in op._schema.arguments]
    place = names.index("dtype")

    def kernel(*args, **named):
        given = args[place] if len(args) > place else named.get("dtype")
        if given is None and eligible(args[0]):
            args, named = args[:place], {**named, "dtype": torch.float32}
        return op(*args, **named)

    return kernel


def promoted(op):
    def kernel(*args, **named):
        given = [each.dtype for each in tree_leaves((args, named)) if eligible(each)]
        to = torch.float32 if torch.float32 in given else low()
        return op(*cast(args, to), **cast(named, to))

    return kernel


POLICIES = {lower: autocast.LOWER, full: autocast.FP32, accumulated: autocast.SET_DTYPE,
            promoted: autocast.PROMOTE}  # fmt: skip


def found(name):
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def uncast(kernel):
    def run(*args, **named):
        with torch._C._ExcludeDispatchKeyGuard(KEYS):
            return kernel(*args, **named)

    return run


def registered(key):
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in names}


@pytest.fixture(scope="module")
def cuda_casts_on_the_host():
    cuda, host = registered("AutocastCUDA"), registered("AutocastCPU")
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for policy, names in POLICIES.items():
            for name in names & cuda:
                library.impl(name, uncast(policy(found(name))), "AutocastCPU")
        for name in host - cuda:
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")
    yield
    library._destroy()


# -- ops of torch's own list ---------------------------------------------------------------------


#: composites that call ops of the lists, and ops of each list
OPS = {
    "cov", "linalg.norm", "log_softmax", "matmul", "square", "tensordot", "trapezoid",
    *(
        f"nn.functional.{name}"
        for name in (
            "conv2d", "cosine_similarity", "cross_entropy", "dropout", "interpolate", "kl_div",
            "layer_norm", "linear", "linear_cross_entropy", "nll_loss",
            "scaled_dot_product_attention",
        )
    ),
}  # fmt: skip


#: ops whose kernels call ops of the lists
CALLING = {"_unsafe_masked_index_put_accumulate", "ldexp", "linalg.pinv", "matrix_exp", "mvlgamma"}


@functools.cache
def cases(given, names=frozenset(OPS), most=1):
    """Ops with the first samples of each."""
    found = []
    for op in op_db:
        if op.name in names and given in op.dtypes:
            torch.manual_seed(1)
            samples = op.sample_inputs("cpu", given, requires_grad=op.supports_autograd)
            found += [(op, sample) for sample in islice(samples, most)]
    return found


def results(call, sample, device, dtype, *, inference):
    """Its results and its gradients."""

    def there(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(device).requires_grad_(value.requires_grad and not inference)

    given, args, named = tree_map(there, (sample.input, sample.args, sample.kwargs))
    named = {**named, "device": device} if "device" in named else named
    torch.manual_seed(2)
    with torch.inference_mode(inference), torch.autocast(device, dtype=dtype):
        made = call(given, *args, **named)
    made = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
    leaves = [
        each
        for each in tree_leaves((given, args, named))
        if isinstance(each, torch.Tensor) and each.requires_grad
    ]
    sums = [each.sum() for each in made if each.requires_grad]
    return [*made, *(torch.autograd.grad(sums, leaves, allow_unused=True) if sums else ())]


def same(one, other):
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one == other
    one, other = one.detach(), other.detach().cpu()
    if one.dtype is not other.dtype or one.is_complex():
        return one.dtype is other.dtype and torch.equal(one, other)
    return torch.equal(one.nan_to_num(), other.nan_to_num())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inference", [False, True], ids=["gradients", "inference"])
@pytest.mark.parametrize(
    ("dtype", "given"), [(HALF, torch.float32), (BRAIN, BRAIN)], ids=["half", "brain"]
)
def test_composites_and_listed_ops_are_cast_as_on_cuda(
    cuda_casts_on_the_host, dtype, given, inference
):
    wrong, count = [], 0
    for op, sample in cases(given):
        here, there = (
            results(op.op, sample, device, dtype, inference=inference) for device in ("cpu", "cuda")
        )
        count += 1
        if len(here) != len(there) or not all(map(same, here, there)):
            wrong.append(f"{op.name} {op.variant_test_name}")
    assert wrong == []
    assert count >= len(OPS)


# -- ops whose kernels call ops of the lists -----------------------------------------------------


class Sample:
    def __init__(self, *tensors):
        self.input, *self.args = tensors
        self.kwargs = {}


def in_place(op):
    return lambda given, *args, **named: op.inplace_variant(given.detach().clone(), *args, **named)


def into(op, *, fits):
    """With `out=`, a tensor of the input's dtype that has the result's shape, or no elements."""

    def call(given, *args, **named):
        plain = tree_map(
            lambda each: each.detach() if isinstance(each, torch.Tensor) else each,
            (given, args, named),
        )
        given, args, named = plain
        shape = op.op(given, *args, **named).shape if fits else 0
        return op.op(given, *args, **named, out=given.new_empty(shape))

    return call


def forms(op):
    """The op, and its in-place and `out=` forms."""
    yield "", op.op
    if op.inplace_variant is not None:
        yield "in place", in_place(op)
    if op.supports_out:
        yield "into out", into(op, fits=True)
        yield "into an empty out", into(op, fits=False)


def calls(given):
    # In half precision, torch's own kernel of `matrix_exp` gives nan or an error.
    names = CALLING - {"matrix_exp"} if given in (HALF, BRAIN) else CALLING
    for op, sample in cases(given, frozenset(names), 4):
        for name, call in forms(op):
            yield f"{op.name} {op.variant_test_name} {name}", call, sample
    torch.manual_seed(1)
    made = functools.partial(torch.randn, dtype=given, requires_grad=True)
    affine = functools.partial(F.affine_grid, size=(2, 3, 4, 5))
    yield "affine_grid", affine, Sample(made(2, 2, 3))
    yield "ldexp of integers", torch.ldexp, Sample(made(3, 4), torch.arange(4))
    yield "matrix_exp of numbers", torch.matrix_exp, Sample(made(5, 1, 1))
    distance = torch.ops.aten._euclidean_dist
    yield "_euclidean_dist", distance, Sample(made(3, 4), made(5, 4))
    tri = functools.partial(torch._trilinear, expand1=[], expand2=[], expand3=[], sumdim=[2, 3])
    yield "_trilinear", tri, Sample(made(2, 1, 3, 1), made(1, 5, 3, 4), made(2, 1, 1, 4))
    if given is torch.float32:
        yield "_safe_softmax", lambda x: torch.ops.aten._safe_softmax(x, -1), Sample(made(3, 4))
    else:
        softmax = torch.ops.aten._safe_softmax
        yield "_safe_softmax", lambda x: softmax(x.detach(), -1), Sample(made(3, 4))


def outcome(*args, **named):
    """The results, or the class of the error."""
    try:
        return results(*args, **named)
    except (RuntimeError, IndexError) as error:
        return [type(error)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inference", [False, True], ids=["gradients", "inference"])
@pytest.mark.parametrize(
    ("dtype", "given"),
    [(HALF, torch.float32), (BRAIN, BRAIN), (HALF, HALF)],
    ids=["half", "brain", "all-half"],
)
def test_ops_are_cast_inside_kernels_that_call_them_as_on_cuda(
    cuda_casts_on_the_host, dtype, given, inference
):
    wrong, count = [], 0
    for name, call, sample in calls(given):
        here, there = (
            outcome(call, sample, device, dtype, inference=inference) for device in ("cpu", "cuda")
        )
        count += 1
        if len(here) != len(there) or not all(map(same, here, there)):
            wrong.append((name, here, there))
    assert wrong == []
    assert count >= len(innercasts.CALLING)


@pytest.mark.parametrize("given", [HALF, BRAIN])
def test_a_trace_in_half_precision_is_a_sum_as_on_cuda(given):
    matrix = torch.randn(3, 4).to(given).cuda().requires_grad_()
    with torch.autocast("cuda", dtype=given):
        made = matrix.trace()
    made.backward()
    assert torch.equal(made.cpu(), matrix.detach().cpu().diagonal().sum(dtype=torch.float32))
    assert torch.equal(matrix.grad.cpu(), torch.eye(3, 4, dtype=given))


def test_an_op_is_not_cast_inside_its_kernel_where_autocast_is_off(cuda_casts_on_the_host):
    matrix = torch.randn(4, 4).cuda()
    with torch.autocast("cuda", dtype=HALF):
        assert torch.linalg.pinv(matrix).dtype is HALF
        with torch.autocast("cuda", enabled=False):
            assert torch.linalg.pinv(matrix).dtype is torch.float32
    assert torch.linalg.pinv(matrix).dtype is torch.float32
