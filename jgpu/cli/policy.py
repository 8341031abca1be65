"""Show or change whose turn it is on the shared device.

    jgpu policy          the policy that decides now
    jgpu policy NAME     another one from now on, until the broker ends; administrators only

The policy that a broker begins with is set in its configuration.
"""

import argparse
from collections.abc import Sequence

from jgpu.wire import address, asking
from jgpu.wire.messages import Done, UsePolicy
from jgpu.wire.reports.asking import ask_report

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu policy [NAME]`."""
    parser = argparse.ArgumentParser(
        prog="jgpu policy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", default="", metavar="NAME")
    options = parser.parse_args(arguments)
    where = address.find_for_administration()
    if not options.name:
        for device in ask_report(where).devices:
            print(device.policy)
        return 0
    reply = asking.ask_for(where, UsePolicy(options.name), Done)
    print(reply.text)
    return 0
