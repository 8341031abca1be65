"""`%jgpu release`: what failed cells left is dropped, what is not the model goes to the host.

The notebook's variables stay as they are: what they hold comes back by itself when the notebook
computes with it.
"""

import gc
import sys
import time
from typing import Final

from jgpu.device.hooks.ipython import shell
from jgpu.device.magics.asking import ask_report, counted, own_row, session
from jgpu.errors import DeviceLost
from jgpu.wire import address, asking, limits
from jgpu.wire.messages import Evict
from jgpu.wire.reports.report import SessionReport
from jgpu.wire.sizes import short_size

__all__ = ["release"]

#: how long the move is waited for, also while a thread computes and brings it back, and how often
#: it is looked for
_DEADLINE_S: Final = 10.0
_WHILE_AT_WORK_S: Final = 0.5
_AT_WORK: Final = ("running", "waiting")
_LOOK_S: Final = 0.02


def release() -> str:
    """Give back what can be given back, and say what that was."""
    mine = session()
    if mine is None:
        return "GPU: this notebook does not use it yet; there is nothing to release."
    from jgpu.device.magics.tensors import of_errors

    before = counted(mine)
    dropped = of_errors()
    if dropped:
        _forget_errors()
    gc.collect()
    mine.catch_up()
    freed = max(0, before - counted(mine))
    first, last = _move(mine.connection.number)
    return _said(freed, dropped=dropped, first=first, last=last)


def _said(freed: int, *, dropped: bool, first: SessionReport, last: SessionReport) -> str:
    moved = max(0, last.spilled_bytes - first.spilled_bytes)
    did = []
    if freed:
        whose = "that a failed cell's error held" if dropped else "that nothing needed any more"
        did.append(f"{short_size(freed)} {whose} is free")
    if moved:
        did.append(f"{short_size(moved)} went to the host and comes back when the notebook goes on")
    text = "GPU: " + ("; ".join(did) if did else "there was nothing to release")
    text += f". On the GPU now: {short_size(last.bytes_on_device)}"
    kept = last.ephemeral_on_device
    if kept:
        text += f", of it {short_size(kept)} beside the model, for the notebook is at work"
    return f"{text}."


def _forget_errors() -> None:
    """What Python and IPython keep of the last error; `%debug` and `%tb` have none then."""
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):
        if hasattr(sys, name):
            delattr(sys, name)
    ipython = shell()
    if ipython is not None:
        ipython.last_execution_result = None
        ipython.InteractiveTB.tb = None


def _move(number: int | None) -> tuple[SessionReport, SessionReport]:
    """Have it moved; the broker's counts before, and when it is done, or cannot be for now."""
    time.sleep(limits.REPORT_AGE_S)  # what is told from here on is of here on
    first = _row(number)
    asking.ask(address.find(), Evict(number or 0, resident=False))
    begun = time.monotonic()
    while True:
        last = _row(number)
        works = last.state in _AT_WORK or last.iterations != first.iterations
        patience = _WHILE_AT_WORK_S if works else _DEADLINE_S
        if not last.ephemeral_on_device or time.monotonic() - begun > patience:
            return first, last
        time.sleep(_LOOK_S)


def _row(number: int | None) -> SessionReport:
    row = own_row(ask_report(), number)
    if row is None:
        raise DeviceLost("The broker knows this notebook's session no longer.")
    return row
