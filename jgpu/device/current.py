"""The process's one session, for everybody who needs it; set by `activate`, replaced in tests."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jgpu.device.session import Session

__all__ = ["session"]

session: "Session" = None  # type: ignore[assignment]


def set_session(made: Any) -> None:
    """Make `made` the session that every tensor of this process lives in."""
    global session
    session = made
