"""The process's one session, for everybody who needs it; set by `activate`, replaced in tests."""

from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jgpu.device.session import Session

__all__ = ["session", "warm", "warming"]

session: "Session" = None  # type: ignore[assignment]
#: imports what torch's meta kernels need
warming: Thread | None = None


def set_session(made: Any) -> None:
    """Make `made` the session that every tensor of this process lives in."""
    global session
    session = made


def warm() -> None:
    """Wait until meta kernels are imported: two threads that import them at once both fail."""
    global warming
    if warming is not None:
        warming.join()
        warming = None
