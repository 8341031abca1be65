"""The process's one session, for everybody who needs it; set by `activate`, replaced in tests."""

from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jgpu.device.client.session import ClientSession

__all__ = ["is_warm", "session", "set_session", "warm"]

session: "ClientSession" = None  # type: ignore[assignment]
_warming = Lock()
_warmed = False


def is_warm() -> bool:
    """Whether `warm` has nothing left to do."""
    return _warmed


def set_session(made: Any) -> None:
    """Make `made` the session that every tensor of this process lives in."""
    global session
    session = made


def warm() -> None:
    """Let torch import what its dispatcher and meta kernels need; about a second, once a process.

    Not in a thread at the start of the process: while the notebook imports parts of torch itself,
    two threads in the same circle of modules can both fail. A notebook does it between two cells
    (`cells`), a script at its first op.
    """
    global _warmed
    with _warming:
        if not _warmed:
            if torch.distributed.is_available():  # the dispatcher asks for it at its first call
                import_module("torch.distributed.tensor")
            made = torch.empty(2, 2, device="meta")
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                torch.ops.aten.addmm.default(made[0], made, made)
            _warmed = True
