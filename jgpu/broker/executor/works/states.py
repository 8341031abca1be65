"""How far a work has come: in its session's order, and in the lane that it was given to.

The pump moves a work through the order, a lane through what it does of it; neither writes the
other's state.
"""

from enum import StrEnum

__all__ = ["LaneProgress", "WorkProgress"]


class WorkProgress(StrEnum):
    """Where a work is in its session's order; the pump's."""

    #: received; waits for its definition, or behind one that does
    RECEIVED = "received"
    #: the scheduler knows it
    OFFERED = "offered"
    #: given to a lane
    LAUNCHED = "launched"
    DONE = "done"
    #: taken back before it was launched
    CANCELLED = "cancelled"


class LaneProgress(StrEnum):
    """What a lane has done of a work."""

    #: nothing, or it is to go on at the op at which it was halted
    DUE = "due"
    #: begun; all of it is launched once the lane is past it
    BEGUN = "begun"
    #: an op of it did not get its memory; it goes on when it is launched again
    HALTED = "halted"
    #: put aside by its lane, which goes on with it when what it waits for is there
    PAUSED = "paused"
    #: not begun, for one before it was halted; it is launched again
    PUT_OFF = "put off"
    #: an interrupt ended it between two ops
    STOPPED = "stopped"
    #: not begun, or left, for nobody wants it: the session is over, or it was taken back
    SKIPPED = "skipped"
