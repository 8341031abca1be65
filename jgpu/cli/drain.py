"""Have the broker begin nothing new, so that it can be stopped without interrupting anybody.

    jgpu drain           no iteration begins; those under way go on to their end
    jgpu drain --wait    the same, and wait until nothing is under way
    jgpu drain --end     whoever waits goes on

New kernels start and wait. Cells that wait are told why. What notebooks keep on the device is lost
when the broker is stopped; how much that is is said at the end. Administrators only.
"""

import argparse
import time
from collections.abc import Sequence

from jgpu.errors import BrokerRefused, BrokerUnreachable
from jgpu.wire import address, asking
from jgpu.wire.messages import Done, Drain
from jgpu.wire.reports.report import Report
from jgpu.wire.reports.watching import watch

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu drain [--wait [--timeout SECONDS] | --end]`."""
    parser = argparse.ArgumentParser(
        prog="jgpu drain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--wait", action="store_true", help="until nothing is under way")
    what.add_argument("--end", action="store_true", help="let everybody go on")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="wait no longer; the drain goes on"
    )
    options = parser.parse_args(arguments)
    where = address.find_for_administration()
    reply = asking.ask_for(where, Drain(not options.end), Done)
    print(reply.text, flush=True)
    return _wait(where, options.timeout) if options.wait else 0


def _wait(where: address.Address, timeout_s: float | None) -> int:
    """Say what is waited for, as it changes; 0 where nothing is under way any more."""
    deadline = time.monotonic() + timeout_s if timeout_s is not None else None
    said = ""
    for report in watch(where, every_s=0.25 if deadline is not None else None):
        broker = report.broker
        if broker.drain == "drained":
            print(broker.drain_text)
            return 0
        if not broker.drain:
            raise BrokerRefused("Somebody else has ended the drain meanwhile.")
        if (line := _waits_for(report)) != said:
            said = line
            print(said, flush=True)
        if deadline is not None and time.monotonic() >= deadline:
            raise BrokerUnreachable(
                f"It is not over after {timeout_s:g} s, and goes on; `jgpu drain --end` ends it."
            )
    raise AssertionError("a watcher is told until an error ends it")


def _waits_for(report: Report) -> str:
    users = {row.id: row.user for row in report.sessions}
    those = [f"{each} ({users.get(each, 'ending')})" for each in report.broker.drain_waits_for]
    return f"Waiting for session {', '.join(those)}." if those else "Waiting for the device."
