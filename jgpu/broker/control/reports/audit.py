"""The log of what happened and who did it: refusals, faults, spills, changes of quotas and policy.

Takes note and hands over to the ledger; nobody waits for that. Of each kind so many a minute are
kept of each identity, and so many in all, so that nobody can fill the log with their own mistakes;
how many were left out is told by the next one. What administrators do is kept, all of it: a list of
a whole class is hundreds of changes at once.

Invariant: a text names nobody but the user whom the event concerns, for they may read it.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jgpu.broker.control.listening.doors import DoorKind
from jgpu.broker.control.listening.handshake import Visit
from jgpu.broker.control.listening.identity import Identities, clean_text
from jgpu.wire.reports.records import EventReport

__all__ = ["Audit"]

_WINDOW_S: Final = 60.0
#: of one kind and identity, and in all, within the window
_EACH: Final = 20
_ALL: Final = 600
#: identities and kinds that are counted at once
_COUNTED: Final = 1024
_TEXT_LENGTH: Final = 1000
_NAME_LENGTH: Final = 256


@dataclass(slots=True)
class _Count:
    """What came of one kind from one identity since a window began."""

    since: float
    kept: int = 0
    left_out: int = 0


class Audit:
    """One broker's; on its event loop."""

    def __init__(
        self,
        keep: Callable[[EventReport], None],
        identities: Identities,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keep = keep
        self._identities = identities
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], _Count] = OrderedDict()
        self._all = _Count(clock())
        #: refusals since the beginning, by reason
        self.refusals: Counter[str] = Counter()
        self._last_id = 0

    def refused(self, visit: Visit, reason: str, text: str, by: str = "") -> None:
        """Somebody was refused, for a reason that is a word of `jgpu.errors`."""
        self.refusals[reason] += 1
        self.said(visit, "refusal", text, by=by)

    def said(self, visit: Visit, kind: str, text: str, about: str = "", by: str = "") -> None:
        """Somebody at a door did something, on behalf of `by` if they may speak for others."""
        peer, door = visit.peer, visit.door
        spoken_for = self._identities.spoken_for(peer, door, by)
        # Nothing is looked up here.
        known = bool(door.user or spoken_for) or self._identities.known(peer.uid)
        self.note(
            kind,
            text,
            about=about,
            who=self._identities.user_of(peer, door, spoken_for) if known else f"uid{peer.uid}",
            identity=str(visit.identity),
            door=door.kind.value,
        )

    def note(
        self,
        kind: str,
        text: str,
        *,
        about: str = "",
        who: str = "",
        identity: str = "",
        door: str = "",
    ) -> None:
        """Something happened; `about` is whom it concerns, `who` did it, if it was a person."""
        now = self._clock()
        trusted = door == DoorKind.ADMINISTRATORS.value and kind != "refusal"
        left_out = 0 if trusted else self._admit(kind, identity or about, now)
        if left_out is None:
            return
        if left_out:
            text = f"{text} ({left_out} more like it before were left out.)"
        self._last_id = max(self._last_id + 1, int(now * 1e6))
        self._keep(
            EventReport(
                id=self._last_id,
                when=now,
                who=clean_text(who, _NAME_LENGTH),
                identity=clean_text(identity, _NAME_LENGTH),
                door=door,
                kind=kind,
                about=clean_text(about, _NAME_LENGTH),
                text=clean_text(text, _TEXT_LENGTH),
            )
        )

    def _admit(self, kind: str, whose: str, now: float) -> int | None:
        """How many were left out before this one; None where this one is, too."""
        key = kind, whose
        count = self._counts.setdefault(key, _Count(now))
        self._counts.move_to_end(key)
        if len(self._counts) > _COUNTED:
            self._counts.popitem(last=False)
        if not 0 <= now - self._all.since < _WINDOW_S:
            self._all = _Count(now)
        left_out = 0
        if not 0 <= now - count.since < _WINDOW_S:
            left_out = count.left_out
            count.since, count.kept, count.left_out = now, 0, 0
        if count.kept >= _EACH or self._all.kept >= _ALL:
            count.left_out += left_out + 1
            return None
        count.kept += 1
        self._all.kept += 1
        return left_out
