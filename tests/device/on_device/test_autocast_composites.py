"""Each op under CUDA's autocast gives the bits that the host's kernels give under the same casts.

The reference is native PyTorch on the host, with CUDA's lists of casts in place of the host's: an
op is cast where torch has a kernel of CUDA's autocast for it, by the policy that torch's header
names. All else (composites, derivatives, kernels) is torch's own.
"""

import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from jgpu.device.composed import autocast

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
    """A dtype for what is accumulated, where none is given."""
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


def cases(given):
    """Ops with a first sample of each."""
    for op in op_db:
        if op.name in OPS and given in op.dtypes:
            torch.manual_seed(1)
            gradients = op.supports_autograd
            yield op, next(iter(op.sample_inputs("cpu", given, requires_grad=gradients)))


def results(op, sample, device, dtype, *, inference):
    """What it returns, and its gradients."""

    def there(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(device).requires_grad_(value.requires_grad and not inference)

    given, args, named = tree_map(there, (sample.input, sample.args, sample.kwargs))
    named = {**named, "device": device} if "device" in named else named
    torch.manual_seed(2)
    with torch.inference_mode(inference), torch.autocast(device, dtype=dtype):
        made = op.op(given, *args, **named)
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
            results(op, sample, device, dtype, inference=inference) for device in ("cpu", "cuda")
        )
        count += 1
        if len(here) != len(there) or not all(map(same, here, there)):
            wrong.append(f"{op.name} {op.variant_test_name}")
    assert wrong == []
    assert count >= len(OPS)
