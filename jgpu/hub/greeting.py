"""What a user has left of the GPU, for the page on which their server starts.

That page shows what a spawner's `progress` yields, and asks for it while the hook before the start
may still be talking to the broker: hence a class of spawner that waits for the sentence.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from jgpu.wire.reports.report import StandingReport
from jgpu.wire.sizes import short_size

__all__ = ["greet", "greeting", "with_greeting"]


def with_greeting(spawner: type) -> type:
    """The same spawner, whose progress begins with what `greet` says."""

    async def progress(self: Any) -> AsyncIterator[dict[str, Any]]:
        if sentence := await asyncio.shield(_awaited(self)):
            yield {"progress": 10, "message": sentence}
        async for event in super(greeted, self).progress():
            yield event

    body = {"__module__": spawner.__module__, "__doc__": spawner.__doc__, "progress": progress}
    greeted: Any = type(spawner.__name__, (spawner,), body)
    made: type = greeted
    return made


def greet(spawner: Any, sentence: str) -> None:
    """Have a server's progress begin with this; nothing, if it is empty."""
    if (told := _awaited(spawner)).done():  # of an earlier start
        spawner.jgpu_greeting = None
        told = _awaited(spawner)
    told.set_result(sentence)


def _awaited(spawner: Any) -> "asyncio.Future[str]":
    if getattr(spawner, "jgpu_greeting", None) is None:
        spawner.jgpu_greeting = asyncio.get_running_loop().create_future()
    awaited: asyncio.Future[str] = spawner.jgpu_greeting
    return awaited


def greeting(user: StandingReport) -> str:
    """One sentence: the device time that is left, and the limits that are set."""
    if user.text:
        return f"Shared GPU: {user.text}"
    quota, parts = user.quota, []
    if quota.device_seconds:
        left = max(quota.device_seconds - user.used_in_period, 0.0)
        parts.append(
            f"{_hours(left)} of {_hours(quota.device_seconds)} of device time left for "
            f"{_days(quota.period)}"
        )
    if quota.memory:
        parts.append(f"at most {short_size(quota.memory)} of its memory")
    if quota.sessions:
        parts.append(f"at most {quota.sessions} notebooks at once")
    return (
        f"Shared GPU: {', '.join(parts)}." if parts else "Shared GPU: no limits but a fair share."
    )


def _hours(seconds: float) -> str:
    """A time in hours and minutes; less than a minute in seconds."""
    minutes = int(seconds) // 60
    hours, minutes = divmod(minutes, 60)
    if not hours and not minutes:
        return f"{int(seconds)} s"
    return " ".join([f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes))


def _days(seconds: float) -> str:
    """A period, as people say it."""
    if seconds == 86400:
        return "the last 24 hours"
    return f"the last {seconds / 86400:.3g} days" if seconds > 86400 else f"any {_hours(seconds)}"
