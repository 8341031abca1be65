"""What one event led to: the actions asked for, and a line in the story of each session touched.

The rule: only `Core.handle` begins a journal's page; everybody else writes on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import deque

    from jgpu.sched.actions import Action
    from jgpu.sched.sessions.session import ScheduledSession

__all__ = ["Journal", "StoryLine"]


class StoryLine(NamedTuple):
    """One line of a session's story."""

    #: when, on the clock of `handle`
    now: float
    #: number of the event, counted by the core from 1
    cause: int
    #: type of that event
    event: str
    #: what became of the session, and why
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.now:.6f} #{self.cause} {self.event}: {self.what} ({self.why})"


class Journal:
    """The page of the event in hand."""

    __slots__ = ("actions", "cause", "event", "now", "waiting")

    def __init__(self) -> None:
        self.now = 0.0
        self.cause = 0
        self.event = ""
        self.actions: list[Action] = []
        #: sessions that began to wait on this page
        self.waiting: list[ScheduledSession] = []

    def begin(self, event: str, now: float) -> None:
        """Turn the page; a clock that goes backwards is held."""
        if now > self.now:
            self.now = now
        self.cause += 1
        self.event = event
        self.actions = []
        if self.waiting:
            self.waiting = []

    def act(self, action: Action) -> None:
        """Ask the executor for something."""
        self.actions.append(action)

    def note(self, story: deque[StoryLine], what: str, why: str) -> None:
        """Add a line to a session's story."""
        story.append(StoryLine(self.now, self.cause, self.event, what, why))
