"""How much of one kind a broker's log takes: what clients repeat does not fill the disk.

Lines are of one kind if the same statement of ours made them; what differs between them, such as
a process's number, does not count. Of each kind a hundred a minute are kept. The next one that is
kept says how many were left out before it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ["Repetitions"]

#: lines of one kind that are kept in each period
_MOST: Final = 100
_PERIOD_S: Final = 60.0
#: kinds that are told apart; our own statements are fewer
_KINDS: Final = 512


@dataclass(slots=True)
class _Kind:
    since: float
    kept: int = 0
    left_out: int = 0


class Repetitions(logging.Filter):
    """A filter for a handler; several threads may log through it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is kept; it may have got a few words at its end."""
        now = self._clock()
        kind = self._kind(record, now)
        if now - kind.since >= _PERIOD_S:
            kind.since, kind.kept = now, 0
        if kind.kept >= _MOST:
            kind.left_out += 1
            return False
        kind.kept += 1
        if kind.left_out:
            text = f"{record.getMessage()} ({kind.left_out} more like this were left out before.)"
            record.msg, record.args = text, ()
            kind.left_out = 0
        return True

    def _kind(self, record: logging.LogRecord, now: float) -> _Kind:
        key = record.name, record.levelno, str(record.msg)
        if key not in self._kinds and len(self._kinds) >= _KINDS:
            key = record.name, record.levelno, ""
        return self._kinds.setdefault(key, _Kind(now))
