"""Show devices, lanes, sessions and memory, as a table or as JSON.

TIME is a session's device time, ITER counts its iterations, EACH is what one of them takes (the
median of the last ones). Only an administrator sees other users' names and notebooks.
"""

import argparse
from collections.abc import Sequence

import msgspec

from jgpu.wire import address
from jgpu.wire.reports.asking import ask_json, ask_report

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu status [--json]`."""
    parser = argparse.ArgumentParser(prog="jgpu status", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the whole report, for programs")
    options = parser.parse_args(arguments)
    where = address.find_for_administration()
    if options.json:
        # As it came: a broker that is newer than this program may say more than this one knows.
        print(msgspec.json.format(ask_json(where), indent=2).decode())
        return 0
    from jgpu import terminal

    terminal.console().print(terminal.report(ask_report(where)))
    return 0
