"""Show devices and sessions live.

Ends with Ctrl-C. A broker that ends meanwhile is waited for.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jgpu.cli.status import ask_status
from jgpu.errors import BrokerUnreachable
from jgpu.wire import address

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
        help="time between two looks; the broker measures once a second at most (default: 1)",
    )
    options = parser.parse_args(arguments)
    from jgpu.cli import _tables

    where, console = address.find_for_administration(), _tables.console()
    if options.once or not sys.stdout.isatty():
        console.print(_tables.report(ask_status(where)))
        return 0
    ask_status(where)  # an address where nobody is, is an error at the start
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_look(where), refresh=True)
            time.sleep(max(0.1, options.interval))


def _look(where: address.Address) -> "RenderableType":
    from rich.text import Text

    from jgpu.cli import _tables

    try:
        return _tables.report(ask_status(where))
    except BrokerUnreachable as error:
        return Text(str(error), style="red")
