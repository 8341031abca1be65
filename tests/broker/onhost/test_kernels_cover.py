"""Every op that a CUDA executor may be sent has a kernel on the host: the CPU's, or one here."""

import inspect

import pytest
import torch

from jgpu.broker.executor.devices.onhost.kernels import DRAWS, KERNELS
from jgpu.wire.vocabulary import is_internal, refusal

#: Ops without any, each with the reason.
REFUSED = {
    "aten::_scaled_dot_product_flash_attention.quantized": "its 8-bit form has no contract",
    "aten::hspmm": "of a sparse tensor, which no executor has",
    "aten::hspmm.out": "of a sparse tensor, which no executor has",
    "aten::qscheme": "of a quantised tensor, which no executor has",
}

#: What a kernel of the host may be found under.
HOST = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional")  # fmt: skip
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def names():
    """Ops of aten that a program may name."""
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        if space == "aten" and not refusal(rest.partition(".")[0]):
            yield name


def op(name):
    base, _, overload = name.partition("::")[2].partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def test_every_op_that_may_be_sent_has_a_kernel_on_the_host():
    missing = {
        name for name in names()
        if not any(has_kernel(name, key) for key in HOST) and op(name) not in KERNELS
    }  # fmt: skip
    assert missing == {name for name in REFUSED if name in set(names())}


def test_an_out_form_of_an_op_that_only_cuda_has_is_here_too():
    """The generated ones call the op itself, which the CPU does not have."""
    only_cuda = {each._schema.name for each in KERNELS if not has_kernel(each.name(), "CPU")}
    forms = {
        name for name in names()
        if name.partition(".")[0] in only_cuda and op(name) not in KERNELS
        and "names" not in name  # of named tensors
        and any(argument.is_out for argument in op(name)._schema.arguments)
        and not is_internal(name.partition("::")[2].partition(".")[0])  # those are refused
        and not has_kernel(name, "CPU")
    }  # fmt: skip
    assert forms == set()


def test_nothing_is_called_refused_that_has_a_kernel():
    assert not [name for name in REFUSED if op(name) in KERNELS]


def test_what_draws_has_a_kernel_too():
    assert set(DRAWS) <= set(KERNELS)


@pytest.mark.parametrize("each", sorted(KERNELS, key=str), ids=str)
def test_a_kernel_is_of_an_op_of_this_torch_and_takes_all_its_arguments(each):
    """More arguments than the schema has, or fewer, would be found at the first call only."""
    count = len(each._schema.arguments)
    drawn = [None] if each in DRAWS else []
    inspect.signature(KERNELS[each].__wrapped__).bind(*drawn, *[None] * count)
    if each in DRAWS:
        inspect.signature(DRAWS[each].__wrapped__).bind(*[None] * count)
