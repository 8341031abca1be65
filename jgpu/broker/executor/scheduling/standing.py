"""Where a session stands with the scheduler: its lane, its boundary, and what is told as one work.

Works that ride behind another (`riding`) are told to the scheduler with that one, their *leader*,
when the last of them is over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jgpu.broker.executor.works.base import Work

__all__ = ["LaneStanding"]


@dataclass(slots=True)
class LaneStanding:
    """One session's."""

    #: the lane that the last launched work was given to, and works that ride behind it
    lane: int = 0
    riders: int = 0
    #: a work that is done but for those that ride behind it, and the seconds of all of them
    leader: "Work | None" = None
    leader_s: float = 0.0
    #: the last work that was launched ended an iteration, or none was
    at_boundary: bool = True
    #: iterations that were finished
    iterations: int = 0
    #: device seconds that the scheduler has charged it
    charged_s: Callable[[], float] = lambda: 0.0
