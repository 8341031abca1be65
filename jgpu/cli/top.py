"""Show devices and sessions live.

What changes is shown as it changes. Ends with Ctrl-C. A broker that ends meanwhile is waited for.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jgpu.errors import BrokerUnreachable, FrameError
from jgpu.wire import address
from jgpu.wire.reports.asking import ask_report
from jgpu.wire.reports.report import Report
from jgpu.wire.reports.watching import watch

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu top [--once] [--interval SECONDS]`."""
    parser = argparse.ArgumentParser(prog="jgpu top", description=__doc__)
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="how often it is drawn again where nothing changes, and how often a broker is asked "
        "that is older and does not tell of changes (default: 1)",
    )
    options = parser.parse_args(arguments)
    from jgpu import terminal

    where, console = address.find_for_administration(), terminal.console()
    if options.once or not sys.stdout.isatty():
        console.print(terminal.report(ask_report(where)))
        return 0
    ask_report(where)  # an address where nobody is, is an error at the start
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:
        for seen in looks(where, max(0.1, options.interval)):
            live.update(_drawn(seen), refresh=True)
    return 0


def looks(where: address.Address, interval_s: float) -> Iterator[Report | BrokerUnreachable]:
    """What there is to see, without end: as it changes, or as often where nobody tells."""
    while True:
        try:
            yield from watch(where, every_s=interval_s)
        except FrameError:  # the broker is older
            yield _asked(where)
        except BrokerUnreachable as error:
            yield error
        time.sleep(interval_s)


def _asked(where: address.Address) -> Report | BrokerUnreachable:
    try:
        return ask_report(where)
    except BrokerUnreachable as error:
        return error


def _drawn(seen: Report | BrokerUnreachable) -> "RenderableType":
    from rich.text import Text

    from jgpu import terminal

    return terminal.report(seen) if isinstance(seen, Report) else Text(str(seen), style="red")
