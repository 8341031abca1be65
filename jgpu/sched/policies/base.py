"""What a policy sees and what it answers.

A policy ranks sessions and may let one in before the turn of another is over. The rule: it only
looks; what it proposes happens if memory, lanes and boundaries allow, which is the core's matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jgpu.sched.limits import Limits

__all__ = ["Choice", "Policy", "Progress", "SessionView", "UserView"]


class UserView(Protocol):
    """What a policy sees of a user."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def weight(self) -> float:
        """Its share."""

    @property
    def share(self) -> float:
        """Its weight, or the part of it that counts while it is at batch work alone."""

    @property
    def device_seconds(self) -> float:
        """Device time charged."""

    @property
    def virtual_s(self) -> float:
        """Device time by share, with a floor."""

    @property
    def in_flight_s(self) -> float:
        """Predicted device time started and not yet charged."""


class SessionView(Protocol):
    """What a policy sees of a session."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def user(self) -> UserView:
        """Whose it is."""

    @property
    def arrival(self) -> int:
        """Its place in the order in which jobs arrived."""

    @property
    def priority(self) -> int:
        """Its class, the lower the more urgent (`jgpu.sched.priorities`)."""

    @property
    def device_seconds(self) -> float:
        """Device time charged."""

    @property
    def attained_s(self) -> float:
        """Device time charged since its job arrived."""

    @property
    def share(self) -> float:
        """What it counts beside its user's other sessions."""

    @property
    def lead_s(self) -> float:
        """Device time by which it comes before its turn."""

    @property
    def remaining_s(self) -> float | None:
        """Device time that its job will still need; None where nobody knows."""

    @property
    def virtual_s(self) -> float:
        """Device time by share, with a floor."""

    @property
    def in_flight_s(self) -> float:
        """Predicted device time started and not yet charged."""

    @property
    def iterations(self) -> int:
        """Iterations finished."""

    @property
    def iteration_s(self) -> float:
        """Mean device time of an iteration; 0 before the first."""


class Progress(NamedTuple):
    """What a policy that plans lanes sees of the device."""

    #: seconds, on the clock of `Core.handle`
    now: float
    #: device time done so far, by what the work was predicted to take alone
    worked_s: float
    #: how many jobs there are, and a number that changes when one comes or goes
    jobs: int
    version: int
    #: lanes that are open
    lanes: int
    #: lanes that there may be
    lanes_at_most: int


class Choice(NamedTuple):
    """A session, and why it rather than another."""

    session: int
    reason: str


class Policy(ABC):
    """Who comes next."""

    #: the name it is chosen by
    name: ClassVar[str]
    #: whether sessions may wait without bound, because that is what the policy is for
    may_starve: ClassVar[bool] = False
    #: what device time of the class batch counts beside other classes, as a part of the weight
    batch_part: ClassVar[float] = 1.0
    #: whether `lanes` is to be asked how many lanes there should be
    plans_lanes: ClassVar[bool] = False
    #: whether `bound` may be asked; whoever ranks or chooses otherwise has to say it anew
    is_bounded: ClassVar[bool] = False
    #: why the one with the least rank is chosen, in a few words
    reason: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if ("rank" in own or "choose" in own) and "bound" not in own:
            cls.is_bounded = False

    @abstractmethod
    def rank(self, session: SessionView) -> tuple[float, ...]:
        """Return a key by which sessions are ordered; the least comes next."""

    def choose(self, candidates: Iterable[SessionView]) -> Choice:
        """Return who comes next of at least one candidate."""
        return Choice(min(candidates, key=self.rank).id, self.reason)

    def bound(self, session: SessionView) -> tuple[float, ...]:
        """Return what a session's rank is not below, of the same length.

        While the session has nothing in flight and weights stay as they are, it does not fall. With
        it the core finds the least of many by `rank`, without `choose`.
        """
        raise NotImplementedError

    def preempts(self, running: SessionView, candidate: SessionView, limits: Limits) -> str:
        """Return why a candidate should come before the running turn is over, "" if not so."""
        del running, candidate, limits
        return ""

    def outranks(self, chosen: SessionView, candidate: SessionView, limits: Limits) -> bool:
        """Whether a candidate should come from another lane before whoever is chosen in this."""
        return bool(self.preempts(chosen, candidate, limits))

    def lanes(self, progress: Progress, limits: Limits) -> int:
        """Return how many lanes there should be; asked where `plans_lanes`."""
        del limits
        return progress.lanes_at_most
