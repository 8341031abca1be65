"""Show devices, lanes, sessions and memory, as a table or as JSON.

TIME is a session's device time, ITER counts its iterations, EACH is what one of them takes (the
median of the last ones). Only an administrator sees other users' names and notebooks.
"""

import argparse
from collections.abc import Sequence

import msgspec

from jgpu.errors import BrokerUnreachable
from jgpu.wire import address
from jgpu.wire.messages import AskStatus, StatusIs
from jgpu.wire.reports.report import Report, decode

__all__ = ["ask_status", "main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu status [--json]`."""
    parser = argparse.ArgumentParser(prog="jgpu status", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the whole report, for programs")
    options = parser.parse_args(arguments)
    where = address.find_for_administration()
    if options.json:
        # As it came: a broker that is newer than this program may say more than this one knows.
        print(msgspec.json.format(_ask(where), indent=2).decode())
        return 0
    from jgpu.cli import _tables

    _tables.console().print(_tables.report(ask_status(where)))
    return 0


def ask_status(where: address.Address) -> Report:
    """The broker's report; raises as `jgpu.wire.address.ask` does."""
    return decode(_ask(where), where)


def _ask(where: address.Address) -> bytes:
    reply = address.ask(where, AskStatus())
    if not isinstance(reply, StatusIs):
        raise BrokerUnreachable(f"The broker at {where} answered {type(reply).__name__}.")
    return reply.json
