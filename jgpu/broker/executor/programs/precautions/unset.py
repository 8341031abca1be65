"""Elements that a kernel leaves unset in what it returns: here they would be anybody's memory.

What such a kernel allocates is zeroed before it is used: the kernel is called below the dispatcher,
where the tensors that it makes for itself can be seen. Which kernels these are was found by running
all ops in memory full of a pattern; a test goes on doing so. Those of CUDA were read.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.programs.precautions.language import Attempt, precaution

__all__: list[str] = []

_KEYS = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}


class _Zeroing(TorchDispatchMode):
    """What a kernel takes for itself is zero: bytes, or `all_types`.

    Bytes are workspaces; of numbers most kernels write all.
    """

    def __init__(self, attempt: Attempt, device: str, *, all_types: bool) -> None:
        super().__init__()
        self._base = f"aten::{attempt.base}"
        self._below = _KEYS[device]
        self._all_types = all_types

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == self._base:  # another form of the same op
            with self:
                return func._op_dk(self._below, *args, **(kwargs or {}))
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty.memory_format and (
            self._all_types or made.dtype is torch.uint8
        ):
            made.zero_()
        return made


def _zeroed(attempt: Attempt, device: str, *, all_types: bool = False) -> Any:
    if not attempt.is_on(device):  # another has the kernel, and fills what it returns
        return attempt.go()
    with _Zeroing(attempt, device, all_types=all_types):
        return attempt.go(below=_KEYS[device])


@precaution("mkldnn_rnn_layer", waits=False, on=("cpu",))
def _with_workspace(attempt: Attempt) -> Any:
    """The workspace has gaps for alignment that nobody writes.

    Whether there is one the kernel asks the grad mode, which the notebook says in place of `train`.
    Without, it computes by another algorithm, whose last bits are others on some processors.
    """
    with torch.set_grad_enabled(bool(attempt["train"])):
        return _zeroed(attempt, "cpu")


@precaution("_cudnn_rnn", "_cudnn_init_dropout_state", waits=False, on=("cuda",))
def _with_reserve(attempt: Attempt) -> Any:
    """What cuDNN keeps for the backward, or for dropout, is its own affair."""
    return _zeroed(attempt, "cuda")


@precaution("_ctc_loss", waits=False)
def _with_likelihoods(attempt: Attempt) -> Any:
    """Likelihoods behind the end of a sequence or a target are not computed."""
    device = attempt["log_probs"].device.type
    # CUDA on the host fills them itself: what its kernels take cannot be seen from here
    return _zeroed(attempt, device, all_types=True) if device in _KEYS else attempt.go()


@precaution(
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_cudnn_attention",),
    waits=False,
    on=("cuda",),
)
def _with_random_state(attempt: Attempt) -> Any:
    """Without dropout the random state is made, and not written."""
    made = attempt.go()
    first = 2 if "efficient" in attempt.name else 6
    for place in (first, first + 1):
        state = made[place]
        unused = place > first and "flash" in attempt.name
        if state is not None and (unused or attempt["dropout_p"] == 0.0):
            state.zero_()
    return made
