"""Ops over lists of tensors: foreach arithmetic, fused optimizers, gradient scaling."""

from collections.abc import Sequence
from typing import Any

import torch

from jgpu.broker.executor.programs.contracts.language import CONTRACTS, Call, contract
from jgpu.broker.executor.programs.geometry import geometry_of, is_dense

__all__: list[str] = []


def _equally_long(call: Call) -> None:
    """Lists of tensors and of numbers have one length; the kernels check the shapes pairwise."""
    lengths = {len(value) for _, value in call.items() if isinstance(value, list)}
    call.require(len(lengths) == 1 and 0 not in lengths, "its lists must have one length")


for _name in (n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names()):
    if _name.startswith("_foreach_"):
        CONTRACTS[_name.partition(".")[0].removesuffix("_")] = _equally_long


def _alike(call: Call, tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    call.require(len(tensors) == len(others), "its lists must have one length")
    for one, other in zip(tensors, others, strict=True):
        call.require(one.shape == other.shape, "tensors that go together differ in shape")
        call.require(one.dtype is other.dtype, "tensors that go together differ in type")
        call.require(is_dense(geometry_of(other)), "its tensors must be dense")


def _fused(call: Call, states: dict[str, bool]) -> None:
    """The kernels walk parameters, gradients and states as flat arrays side by side."""
    own: Any = call["self"]
    call.require(bool(own), "its lists are empty")
    _alike(call, own, own)
    _alike(call, own, call["grads"])
    for name, needed in states.items():
        if needed or call[name]:
            _alike(call, own, call[name])
    call.single("grad_scale", "found_inf")
    if "state_steps" in call:
        steps = call["state_steps"]
        fits = all(step.numel() == 1 and step.dtype is torch.float32 for step in steps)
        call.require(fits and len(steps) == len(own), "state_steps are one float32 each")
    if "lr" in call and isinstance(call["lr"], torch.Tensor):
        call.single("lr")


@contract("_fused_adam", "_fused_adamw", without_meta=True)
def _adam(call: Call) -> None:
    needed = {"exp_avgs": True, "exp_avg_sqs": True, "max_exp_avg_sqs": bool(call["amsgrad"])}
    _fused(call, needed)


@contract("_fused_sgd", without_meta=True)
def _sgd(call: Call) -> None:
    _fused(call, {"momentum_buffer_list": False})  # the kernels compare it with the momentum


@contract("_fused_adagrad", without_meta=True)
def _adagrad(call: Call) -> None:
    _fused(call, {"state_sums": True})


@contract("_amp_foreach_non_finite_check_and_unscale")
def _unscale(call: Call) -> None:
    call.single("found_inf", "inv_scale")
    call.typed("found_inf", torch.float32)
    call.typed("inv_scale", torch.float32)
    call.require(bool(call["self"]), "its list is empty")


@contract("_amp_update_scale")
def _scale(call: Call) -> None:
    call.single("self", "growth_tracker", "found_inf")
    call.typed("self", torch.float32)
    call.typed("growth_tracker", torch.int32)
    call.typed("found_inf", torch.float32)
