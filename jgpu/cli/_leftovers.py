"""Ends what a program of `jgpu run` has left behind when it, or `jgpu run`, was killed.

`jgpu run` starts this file beside the program, without site-packages, so that it costs 10 ms. Its
command line is not that of `jgpu run`, or who kills the one by name would kill both. It waits for
its standard input to close: then there is something to do, or else it is killed before. Whoever
has the seat's ticket in its environment belongs to the program, in whatever session or process
group, and whoever its parent is by now.

Knows the standard library alone. Does not reach what another user's account runs (`sudo`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["Keeper"]

#: From SIGTERM to SIGKILL: enough to write a checkpoint, as batch systems have it.
_GRACE_S: Final = 30.0
#: What SIGKILL does not end by then waits in the kernel, for a disk for example.
_GIVEN_UP_S: Final = 10.0
_POLL_S: Final = 0.05
#: How long `jgpu run` stays for it.
_WAITED_S: Final = 1.0


class Keeper:
    """The process that ends a program's leftovers; use as a context manager around the program.

    It does so when this process is gone, and when the program is said to have been `killed`.
    """

    def __init__(self, mark: str, environ: dict[str, str]) -> None:
        self._mark = mark
        self._environ = environ
        self._killed = False

    def __enter__(self) -> "Keeper":
        """Start it; `mark` is what the program's environment has, as VARIABLE=value."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=self._environ,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._say(self._mark.encode() + b"\n")
        return self

    def began(self, pid: int) -> None:
        """The program's own process is told of this process's end by the host's kernel."""
        self._say(b"%d\n" % pid)

    def killed(self) -> None:
        """A signal has ended the program; what it started is to end, too."""
        self._killed = True

    def __exit__(self, *_: object) -> None:
        """Release it; after `killed` it stays until it is through, and is waited for a little."""
        if not self._killed:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_WAITED_S)

    def _say(self, words: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # where somebody ended it, the program runs on
            self._input.write(words)
            self._input.flush()


def _main() -> None:
    mark, *told = sys.stdin.buffer.read().splitlines()
    _end(mark, set(map(int, told)))


def _end(mark: bytes, told: set[int]) -> None:
    """End all processes that have the mark; those that were told get no second SIGTERM."""
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < _GRACE_S + _GIVEN_UP_S:
        alive = False
        for pid, descriptor in _marked(mark):
            alive = True
            if passed > _GRACE_S:
                _send(descriptor, signal.SIGKILL)
            elif pid not in told:
                told.add(pid)
                _send(descriptor, signal.SIGTERM)
                _send(descriptor, signal.SIGCONT)
        if not alive:
            return
        time.sleep(_POLL_S)


def _marked(mark: bytes) -> Iterator[tuple[int, int]]:
    """Processes that have the mark in their environment, each with a descriptor."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            descriptor = os.pidfd_open(int(entry.name))
        except OSError:
            continue
        try:  # the descriptor is held first: the number may be another process's a moment later
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), descriptor
        except OSError:  # it is gone, or another account's
            continue
        finally:
            os.close(descriptor)


def _send(descriptor: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(descriptor, number)


if __name__ == "__main__":
    _main()
