"""What a user has left of the GPU, for the page on which their server starts."""

from jgpu.wire.report import StandingReport
from jgpu.wire.sizes import size_text

__all__ = ["greeting"]


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
        parts.append(f"at most {size_text(quota.memory)} of its memory")
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
