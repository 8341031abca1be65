"""Run any program with `cuda` being the shared device.

    jgpu run [--user U] [--priority P] -- CMD ...

The program's exit status is passed on (128 + N where signal N ended it), signals are passed in. It
does not outlive `jgpu run`: where that is killed, the program gets SIGTERM, and so does what it
started, also where only the program was killed (`jgpu.cli._leftovers`).
Unlike a kernel, a program without a seat is not started at all: nobody reads its first cell.
"""

import argparse
import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jgpu.cli._leftovers import Keeper
from jgpu.errors import JgpuError
from jgpu.kernelprovider.environment import furnish, outer_environment
from jgpu.kernelprovider.seat import LABEL_LENGTH, leave, take
from jgpu.wire import address

__all__ = ["main"]

_FORWARDED: Final = (
    signal.SIGCONT,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
#: `si_code` of a signal that the kernel sent: a terminal's, which the program got, too.
_FROM_KERNEL: Final = 0x80
_PR_SET_PDEATHSIG: Final = 1
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


def main(arguments: Sequence[str]) -> int:
    """Run `jgpu run` with these arguments."""
    options = _parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        _parser().error("which program? `jgpu run -- python train.py`")
    environ = dict(os.environ)
    wishes = {address.USER: options.user, address.PRIORITY: options.priority}
    environ |= {variable: value for variable, value in wishes.items() if value is not None}
    if options.user:  # whom to charge is believed where administrators are heard
        environ[address.ADDRESS] = str(address.find_for_administration(environ))
    label = f"{shlex.join([Path(command[0]).name, *command[1:]])}"[:LABEL_LENGTH]
    kernel_id = f"run-{os.getpid()}"
    seat = take(environ, kernel_id=kernel_id, label=label)
    furnish(environ, where=seat.address, ticket=seat.ticket, label=label, kernel_id=kernel_id)
    outside = outer_environment(environ)  # itself it is none of the program's
    try:
        with Keeper(f"{address.TICKET}={seat.ticket}", outside) as keeper:
            return _run(command, environ, keeper)
    finally:
        with contextlib.suppress(JgpuError):
            leave(seat)


def _run(command: list[str], environ: dict[str, str], keeper: Keeper) -> int:
    """Spawn the program, pass signals in until it ends, return its status."""
    waited = {*_FORWARDED, signal.SIGCHLD}
    ours, prctl = os.getpid(), ctypes.CDLL(None).prctl
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)

    def begin() -> None:  # in the program's process; no thread runs here
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != ours:  # too late for that
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # not what is blocked for us

    try:
        process = subprocess.Popen(command, env=environ, preexec_fn=begin)
    except FileNotFoundError:
        print(f"jgpu run: {command[0]}: command not found", file=sys.stderr)
        return _NOT_FOUND
    except OSError as error:
        print(f"jgpu run: {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_EXECUTABLE
    else:
        keeper.began(process.pid)
        while process.poll() is None:
            arrived = signal.sigwaitinfo(waited)
            if arrived.si_signo != signal.SIGCHLD and arrived.si_code != _FROM_KERNEL:
                process.send_signal(arrived.si_signo)
        if process.returncode >= 0:
            return process.returncode
        keeper.killed()
        return 128 - process.returncode
    finally:
        # What came too late for the program must not end us before the seat is given up.
        while signal.sigtimedwait(waited, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jgpu run",
        usage="jgpu run [--user U] [--priority P] -- CMD ...",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument(
        "--user", metavar="U", help="whom to charge; for administrators and one's own broker"
    )
    parser.add_argument("--priority", metavar="P", help="for policies that know priorities")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    return parser
