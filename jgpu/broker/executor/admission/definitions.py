"""Definitions on their way: received, checked aside, and waited for by works.

All sessions share what was checked, by content hash. A definition that is bad stays bad for
everybody; a few of the last bad ones are remembered, so that runs of them fail as they should.

Invariant: a work is never given a definition whose hash is not the one that it names.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from jgpu.broker.executor.aside import HelperThread
from jgpu.broker.executor.programs import (
    KINDS,
    Definition,
    DefinitionCache,
    DeviceKind,
    define,
)
from jgpu.broker.flightpage import Kind
from jgpu.errors import ProgramError
from jgpu.wire.program import program_hash

if TYPE_CHECKING:
    from jgpu.broker.executor.session import ExecutorSession

__all__ = ["Definitions", "Verdict"]

_log = logging.getLogger(__name__)

Verdict = Definition | ProgramError

#: bad definitions remembered
_BAD: Final = 256


class _BrokeDown(ProgramError):
    """A check that did not come to its end, for want of memory perhaps: the next one may."""


class Definitions:
    """What is known of each hash: a definition, an error, or that it is being checked."""

    def __init__(self, device: DeviceKind, aside: HelperThread) -> None:
        self._device: DeviceKind = device
        self._aside = aside
        self._cache = DefinitionCache(device)
        #: what is good of this hash, and who asks: for every run, as most are
        self.known = self._cache.get
        self._bad: OrderedDict[bytes, ProgramError] = OrderedDict()
        #: hashes that are being checked, and who wants to know
        self._pending: dict[bytes, list[Callable[[Verdict], None]]] = {}

    def __len__(self) -> int:
        return len(self._cache)

    def get(self, key: bytes, identity: str = "") -> Verdict | None:
        """What came of this hash, and who asks; None if it is being checked or is not known."""
        return self.known(key, identity) or self._bad.get(key)

    def pending(self, key: bytes) -> bool:
        """Whether this hash is being checked."""
        return key in self._pending

    def learn(
        self, session: "ExecutorSession", data: bytes, then: Callable[[Verdict], None]
    ) -> None:
        """Check a program aside; `then` is told the verdict on the pump, at once if known."""
        key = program_hash(data)
        known = self.get(key, session.owner.identity)
        if known is not None and not isinstance(known, _BrokeDown):
            then(known)
        elif key in self._pending:
            self._pending[key].append(then)
        else:
            self._pending[key] = [then]

            def check() -> Definition:
                self._aside.flight.begin(session.number, 0, Kind.DEFINITION, key)
                return define(data, self._device)

            def settle(result: Any) -> None:
                self._settle(key, data, session.owner.identity, result)

            self._aside.put(session.number, check, settle, whose=session.owner.identity)

    def _compile(self, task: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Have a program compiled where nobody's launches wait for it."""
        self._aside.put(0, task, then, whose="compiling")

    def _settle(self, key: bytes, data: bytes, identity: str, result: Any) -> None:
        verdict: Verdict
        if isinstance(result, Definition):
            verdict = self._cache.add(result, len(data), identity)
            if KINDS[self._device].runs_ahead and verdict.aside is None:
                verdict.aside = self._compile
            self._bad.pop(key, None)
        else:
            if not isinstance(result, ProgramError):
                _log.error("checking a program broke down", exc_info=result)
                result = _BrokeDown(f"Checking this program broke down: {result!r}.")
            verdict = self._bad[key] = result
            if len(self._bad) > _BAD:
                self._bad.popitem(last=False)
        for then in self._pending.pop(key):
            then(verdict)
