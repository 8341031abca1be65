"""Have a session give up its device memory until it works again; nothing of it is lost.

    jgpu evict SESSION              all of it, the model too
    jgpu evict SESSION --ephemeral  what is not the model's

`jgpu status` has the sessions' numbers. What was moved to the host comes back by itself, with the
session's next work. A user may do this to their own sessions, an administrator to all.
"""

import argparse
from collections.abc import Sequence

from jgpu.wire import address, asking
from jgpu.wire.messages import Done, Evict

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """`jgpu evict SESSION [--ephemeral]`."""
    parser = argparse.ArgumentParser(
        prog="jgpu evict",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("session", type=_number, metavar="SESSION")
    parser.add_argument("--ephemeral", action="store_true", help="leave the model where it is")
    options = parser.parse_args(arguments)
    where = address.find_for_administration()
    reply = asking.ask_for(where, Evict(options.session, not options.ephemeral), Done)
    print(reply.text)
    return 0


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is no session's number; see `jgpu status`.")
    return int(text)
