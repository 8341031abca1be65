"""Elements that a kernel leaves unset in what it returns: here they would be anybody's memory.

What such a kernel allocates is zeroed before it is used: the kernel is called below the dispatcher,
where the tensors that it makes for itself can be seen. Which kernels these are was found by running
all ops in memory full of a pattern; a test goes on doing so.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.broker.executor.programs.precautions.language import Attempt, precaution

__all__: list[str] = []


class _Zeroing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes that a kernel takes for a workspace are zero; numbers it writes itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty.memory_format and made.dtype is torch.uint8:
            made.zero_()
        return made


@precaution("mkldnn_rnn_layer", on=("cpu",))
def _with_workspace(attempt: Attempt) -> Any:
    """The workspace has gaps for alignment that nobody writes."""
    with _Zeroing():  # type: ignore[no-untyped-call]
        return attempt.go(below=torch._C.DispatchKey.CPU)
