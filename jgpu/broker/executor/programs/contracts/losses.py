"""Losses whose backward trusts the forward: negative log-likelihood, margins, CTC.

Values of targets are looked at before each run (`programs.guards`); shapes here.
"""

import torch

from jgpu.broker.executor.programs.contracts.language import Call, contract

__all__: list[str] = []


@contract("nll_loss_backward", "nll_loss2d_backward")
def _nll(call: Call) -> None:
    op = "nll_loss2d_forward" if "nll_loss2d" in call.name else "nll_loss_forward"
    plain = (call["weight"], call["reduction"], call["ignore_index"])
    output, total = call.forward(op, call["self"], call["target"], *plain)
    call.same("grad_output", output)
    call.saved("total_weight", total, call["self"].dtype)
    call.typed("weight", call["self"].dtype)
    call.require(call["target"].dtype in (torch.int64, torch.uint8), "targets must be integers")


@contract("multi_margin_loss_backward", without_meta=True)
def _multi_margin(call: Call) -> None:
    shape = call["self"].shape
    call.require(len(shape) <= 2, "it takes vectors or matrices")
    frames = shape[0] if len(shape) == 2 else 1
    call.require(call["target"].dim() <= 1, "target must be a vector")
    call.require(call["target"].numel() == frames, "there must be one target per sample")
    call.typed("target", torch.int64)
    call.channels(shape[-1] if shape else 1, "weight")
    _reduced(call, frames)


@contract("multilabel_margin_loss_backward", without_meta=True)
def _multilabel_margin(call: Call) -> None:
    shape = call["self"].shape
    call.require(len(shape) <= 2, "it takes vectors or matrices")
    call.require(call["target"].numel() == call["self"].numel(), "target has another size")
    call.require(call["target"].shape[-1:] == shape[-1:], "target has another shape")
    call.typed("target", torch.int64)
    call.saved("is_target", "target", call["self"].dtype)
    _reduced(call, shape[0] if len(shape) == 2 else 1)


def _reduced(call: Call, frames: int) -> None:
    """The gradient of a loss per sample, or of one number."""
    count = frames if call["reduction"] == 0 else 1
    call.require(call["grad_output"].numel() == count, "grad_output has a wrong size")
    call.require(call["grad_output"].dim() <= 1, "grad_output must be a vector")


def _ctc(call: Call) -> tuple[int, int, int]:
    """Shapes that both directions of CTC share: steps, batch, longest target."""
    probs, targets = call["log_probs"], call["targets"]
    inputs, lengths = call.integers("input_lengths"), call.integers("target_lengths")
    call.require(probs.dim() == 3, "log_probs must have three dimensions")
    steps, batch, labels = probs.shape
    call.require(len(inputs) == len(lengths) == batch, "there must be one length per sequence")
    call.require(all(0 <= n <= steps for n in inputs), "an input is longer than log_probs")
    call.require(0 <= call["blank"] < labels, "blank is not a label")
    longest = max(lengths, default=0)
    call.require(all(n >= 0 for n in lengths), "a target has a negative length")
    if targets.dim() == 1:
        call.shaped("targets", (sum(lengths),))
    else:
        call.require(
            targets.dim() == 2 and targets.shape[0] == batch and targets.shape[1] >= longest,
            "targets are too short",
        )
        longest = targets.shape[1]
    return steps, batch, longest


@contract("_ctc_loss", without_meta=True)
def _ctc_forward(call: Call) -> None:
    _ctc(call)


@contract("_ctc_loss_backward", without_meta=True)
def _ctc_backward(call: Call) -> None:
    _, batch, _ = _ctc(call)
    steps = max(call.integers("input_lengths"), default=0)
    longest = max(call.integers("target_lengths"), default=0)
    call.channels(batch, "neg_log_likelihood")
    call.shaped("grad", (batch,))
    alpha = call["log_alpha"]
    # the forward lays it out for the padded width of the targets
    width = max(longest, call["targets"].shape[-1] if call["targets"].dim() == 2 else 0)
    shapes = {
        (batch, t, 2 * w + 1) for t in (steps, call["log_probs"].shape[0]) for w in (longest, width)
    }
    call.require(tuple(alpha.shape) in shapes, "log_alpha is not what the forward op saved")
    call.require(
        alpha.shape[1] >= steps and alpha.shape[2] >= 2 * longest + 1, "log_alpha is small"
    )
    call.contiguous("log_alpha")
