"""The process's one session, for everybody who needs it; set by `activate`, replaced in tests."""

from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jgpu.device.session import Session

__all__ = ["session", "set_session", "warm"]

session: "Session" = None  # type: ignore[assignment]
_warming = Lock()
_warmed = False


def set_session(made: Any) -> None:
    """Make `made` the session that every tensor of this process lives in."""
    global session
    session = made


def warm() -> None:
    """Let torch import what its meta kernels need; takes a third of a second, once a process.

    Not in a thread at the start of the process: while the notebook imports parts of torch itself,
    two threads in the same circle of modules can both fail.
    """
    global _warmed
    with _warming:
        if not _warmed:
            made = torch.empty(2, 2, device="meta")
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                torch.ops.aten.addmm.default(made[0], made, made)
            _warmed = True
