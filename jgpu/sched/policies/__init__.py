"""Policies: who comes next, chosen by name.

Names are looked up in the entry-point group `jgpu.policies`, where other packages may add theirs,
and, when the package's metadata is not installed, in a table of those that come with jgpu.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final, cast

from jgpu.errors import ConfigError
from jgpu.sched.policies.base import Choice, Policy, Progress, SessionView, UserView

__all__ = [
    "BUILT_IN",
    "ENTRY_POINTS",
    "Choice",
    "Policy",
    "Progress",
    "SessionView",
    "UserView",
    "known_policies",
    "load_policy",
]

ENTRY_POINTS: Final = "jgpu.policies"

BUILT_IN: Final = {
    "fair": "jgpu.sched.policies.fair:Fair",
    "fifo": "jgpu.sched.policies.fifo:Fifo",
    "las": "jgpu.sched.policies.las:LeastAttainedService",
    "pack": "jgpu.sched.policies.pack:Pack",
    "priority": "jgpu.sched.policies.priority:ByPriority",
    "srtf": "jgpu.sched.policies.srtf:ShortestRemaining",
}


@cache
def known_policies() -> dict[str, str]:
    """Return where each policy is, as `module:Class` by name; asks the installation once."""
    from importlib.metadata import entry_points  # slow to import, and needed here alone

    published = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return BUILT_IN | published


def load_policy(name: str) -> Policy:
    """Return a new policy of this name.

    Raises `ConfigError` where there is none of this name.
    """
    places = known_policies()
    if name not in places:
        known = ", ".join(sorted(places))
        raise ConfigError(f"There is no scheduling policy {name!r}; there are: {known}.")
    module, _, attribute = places[name].partition(":")
    return cast("Policy", getattr(import_module(module), attribute)())
