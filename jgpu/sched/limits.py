"""The numbers by which turns and waits are measured, each named and settable.

The rule: no other module of the core holds a time or a size of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of turns, of work in flight and of waits; all times in seconds."""

    #: device time of a turn, unless one iteration of the session takes longer
    quantum_s: float = 0.010
    #: device time after which a turn ends between works although no iteration has ended
    hard_cap_s: float = 0.100
    #: predicted device time that a lane may have started and unfinished
    in_flight_s: float = 0.001
    #: segments that a lane may always have in flight, however long they take
    in_flight_segments: int = 2
    #: what a segment of unknown duration counts as
    nominal_segment_s: float = 0.0005
    #: the least that a segment counts as, for launching it takes time too
    least_segment_s: float = 0.000001
    #: device time used in a turn between two looks for somebody who is owed time
    look_s: float = 0.001
    #: how long one may have nothing to do and still be owed what one was owed before
    grace_s: float = 0.100
    #: device time that one can be owed at most after having had nothing to do
    credit_s: float = 0.200
    #: how long a session waits for memory before others begin no iteration until it has a lane
    patience_s: float = 0.250
    #: how long a session may wait for its turn, per session of its lane, before it comes next
    #: whatever is owed to others; a bound that only odd cases reach
    longest_wait_s: float = 1.0
    #: how long a session may wait for memory before others, though they have work, give theirs up
    #: for it; and how long one has it at least before that can happen to it
    memory_turn_s: float = 2.0
    #: how long a work may wait in mid-iteration for its lane to grow before it goes on all the same
    room_patience_s: float = 4.0
    #: how long a number of lanes is tried before it is judged
    trial_s: float = 0.500
    #: by how much more must be done with a lane more for it to be kept, as a part of one
    least_gain: float = 0.02
    #: weight of the newest measurement in the mean time of a session's iterations
    newest: float = 0.25
    #: device times of its last iterations that are kept of each session, for their distribution
    iterations_kept: int = 128
    #: how long after memory could not be brought back, for want of it, that is tried again
    retry_s: float = 0.050
    #: sessions waiting in a lane that are looked at one by one; of more, the first is kept track of
    listed_at_most: int = 4
    #: accounts kept of users who have no session
    users_kept: int = 4096
    #: entries kept of each session's story
    story_entries: int = 64

    def quantum_of(self, iteration_s: float) -> float:
        """Return the device time of a turn of a session whose iterations take so long."""
        return iteration_s if iteration_s > self.quantum_s else self.quantum_s

    def cap_of(self, iteration_s: float) -> float:
        """Return the device time after which a turn ends without an iteration having ended.

        An iteration that is known to take longer than the cap may take twice its mean.
        """
        return max(self.hard_cap_s, 2 * iteration_s)
