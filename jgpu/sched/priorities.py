"""The classes of sessions: how urgent is what they do."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Priority", "name_of"]


class Priority(IntEnum):
    """A session's class; the lower the number, the sooner it is served."""

    INTERACTIVE = 0
    NORMAL = 1
    BATCH = 2


def name_of(priority: int) -> str:
    """Return the class's name, in lower case."""
    return Priority(priority).name.lower()
