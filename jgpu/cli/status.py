"""Show devices, lanes, sessions and memory, as a table or as JSON.

TIME is a session's device time, ITER counts its iterations, EACH is what one of them takes (the
median of the last ones). Only an administrator sees other users' names and notebooks.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from jgpu.errors import BrokerUnreachable
from jgpu.wire import address
from jgpu.wire.messages import AskStatus, StatusIs

__all__ = ["ask_status", "main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu status [--json]`."""
    parser = argparse.ArgumentParser(prog="jgpu status", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the whole report, for programs")
    options = parser.parse_args(arguments)
    status = ask_status(address.find())
    if options.json:
        json.dump(status, sys.stdout, indent=2)
        print()
        return 0
    from jgpu.cli import _tables

    _tables.console().print(_tables.report(status))
    return 0


def ask_status(where: address.Address) -> dict[str, Any]:
    """The broker's report; raises as `jgpu.wire.address.ask` does."""
    reply = address.ask(where, AskStatus())
    if not isinstance(reply, StatusIs):
        raise BrokerUnreachable(f"The broker at {where} answered {type(reply).__name__}.")
    report: dict[str, Any] = json.loads(reply.json)
    return report
