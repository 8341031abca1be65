"""The safety condition of device memory, and FindLane: pure functions over byte counts.

Salus' condition and Algorithm 1 (Yu and Chowdhury, MLSys 2020, section 3.3), made sound for eager
PyTorch, where ephemeral memory is not zero at a boundary and an iteration may be suspended:

    sum over sessions of P + K
    + sum over lanes of (the largest T of a lane's sessions + the T of its suspended iterations)
    <= C

A lane's capacity stands for its largest T; it is never smaller. The rule: nobody else adds these
figures up; a suspension, which comes and goes with turns, changes the sum by its own T. What is not
covered: how P, K and T come about, which the executor measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jgpu.sched.states import LaneState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jgpu.sched.lanes.lane import Lane

__all__ = ["Placement", "committed_bytes", "find_lane"]


class Placement(NamedTuple):
    """Where a session may go: into `lane`, or a new one (None), given this capacity."""

    lane: Lane | None
    capacity: int
    reason: str


def committed_bytes(held: int, lanes: Iterable[Lane]) -> int:
    """Return the left side of the safety condition; `held` is the sum of all P + K."""
    return held + sum([lane.capacity + lane.suspended for lane in lanes])


def find_lane(
    need: int, committed: int, capacity: int, maximum: int, lanes: Collection[Lane]
) -> Placement | None:
    """Return where a session that needs `need` transient bytes may go, None if it must wait.

    The session's own P and K are part of `committed`. In this order: a lane of its own; the lane
    that fits best, of those equal the one where fewest wait; the smallest lane that can be grown.
    """
    if len(lanes) < maximum and committed + need <= capacity:
        return Placement(None, need, "a lane of its own fits")
    open_lanes = [lane for lane in lanes if lane.state is LaneState.OPEN]
    if committed <= capacity:
        fitting = [lane for lane in open_lanes if lane.capacity >= need]
        if fitting:
            best = min(fitting, key=lambda lane: (lane.capacity, len(lane.waiting), lane.id))
            return Placement(best, best.capacity, "the lane that fits best")
    for lane in sorted(open_lanes, key=lambda lane: (lane.capacity, lane.id)):
        if lane.capacity < need and committed - lane.capacity + need <= capacity:
            return Placement(lane, need, "the smallest lane that could be grown")
    return None
