"""A signal whose handler raises, sent between any two of the client's own instructions.

Python runs handlers where a function begins or returns and where a loop turns. `striking` is
stricter: it sends the signal in front of the n-th instruction, whichever that is.
"""

import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import jgpu

__all__ = ["Struck", "not_striking", "striking"]

_OURS = Path(jgpu.__file__).parent
#: whose instructions count: what frames, sends, takes in and numbers, and the blocks themselves
_WATCHED = ("wire", "device/client", "device/interrupts.py")
_NUMBER = signal.SIGUSR1


class Struck(Exception):
    """What the handler raises."""


def _strike(number, frame):
    raise Struck


@contextmanager
def striking(at, watched=_WATCHED):
    """Send the signal in front of instruction `at` in the block; gives a count of them, a list.

    Of the modules and packages `watched` alone, by their paths in the package.
    """
    files = tuple(str(_OURS / each) for each in watched)
    counted = [0]

    def instruction(frame, event, _):
        if event == "opcode":
            counted[0] += 1
            if counted[0] == at:
                signal.raise_signal(_NUMBER)
        return instruction

    def call(frame, event, _):
        if not frame.f_code.co_filename.startswith(files):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return instruction

    before, traced = signal.signal(_NUMBER, _strike), sys.gettrace()
    sys.settrace(call)
    try:
        yield counted
    finally:
        sys.settrace(traced)
        signal.signal(_NUMBER, before)


@contextmanager
def not_striking():
    """Neither send nor count in the block: what runs there is the other end's."""
    traced = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(traced)
