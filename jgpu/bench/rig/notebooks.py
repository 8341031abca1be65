"""Processes that train as they are told, from this end: started, asked, ended.

Every process that was started has ended when its group is left, and one that ended by itself is
told with its last words.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Final

from jgpu.errors import WorkFailed

__all__ = ["NATIVE", "Group", "NotebookProcess", "batch_of", "together"]

_PROGRAMS: Final = Path(__file__).parents[1] / "resources"
#: longest that a process may take for anything but what it was told to take
_PATIENCE_S: Final = 300.0
#: how long after the command a stretch of several begins, so that all of them do
_HEAD_START_S: Final = 0.3
_END_S: Final = 20.0

#: names of processes without a seat
NATIVE: Final = "native"


class NotebookProcess:
    """One process of a program in `resources`, that answers each line with a line."""

    def __init__(
        self,
        name: str,
        program: str,
        options: Mapping[str, Any],
        environ: Mapping[str, str],
        join: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        command = [sys.executable, str(_PROGRAMS / program), json.dumps(options)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environ),
            preexec_fn=join,  # no thread runs here
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """How it ended; negative for the signal that ended it."""
        return self._process.poll()

    def tell(self, do: str, **how: Any) -> None:
        """Give it something to do."""
        stream = self._process.stdin
        assert stream is not None
        try:
            stream.write(json.dumps({"do": do, **how}).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def answer(self, patience_s: float = _PATIENCE_S) -> dict[str, Any]:
        """Its next line; raises `WorkFailed` if it ends or nothing comes."""
        deadline = time.monotonic() + patience_s
        stream = self._process.stdout
        assert stream is not None
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WorkFailed(f"{self.name} has not answered for {patience_s:g} s.")
            if select.select([stream], [], [], left_s)[0]:
                data = os.read(stream.fileno(), 1 << 20)
                if not data:
                    raise self._failure()
                self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def has_answered(self) -> bool:
        """Whether `answer` would not wait: a line is there, or it has ended."""
        stream = self._process.stdout
        assert stream is not None
        return b"\n" in self._unread or bool(select.select([stream], [], [], 0)[0])

    def _failure(self) -> WorkFailed:
        try:
            status: int | None = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            status = None
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip()
        return WorkFailed(f"{self.name} ended with status {status}:\n{words}")

    def close(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            _close(stream)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def _close(stream: IO[bytes] | None) -> None:
    assert stream is not None
    with suppress(BrokenPipeError):
        stream.close()


class Group:
    """Several processes, ended together; a context manager."""

    def __init__(
        self, program: str = "notebook.py", join: Callable[[], None] | None = None
    ) -> None:
        """`join` is called in each new process before it is anything else's."""
        self._program = program
        self._join = join
        self._stack = ExitStack()
        self.members: list[NotebookProcess] = []

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, environ: Mapping[str, str], **options: Any) -> NotebookProcess:
        """Start one; it is ready after `wait_until_ready`."""
        made = NotebookProcess(name, self._program, options, environ, self._join)
        self._stack.callback(made.close)
        self.members.append(made)
        return made

    def wait_until_ready(self) -> list[dict[str, Any]]:
        """What each says of itself when it is."""
        return [member.answer() for member in self.members]


def together(members: Sequence[NotebookProcess], do: str, **how: Any) -> list[dict[str, Any]]:
    """Have all do the same from the same moment on; what each found."""
    at = time.monotonic() + _HEAD_START_S
    for member in members:
        member.tell(do, at=at, **how)
    return [member.answer() for member in members]


def batch_of(model: str, target_ms: float, environ: Mapping[str, str]) -> int:
    """The batch at which a native step of the model takes about so long on one thread."""
    with Group() as group:
        options = {"model": model, "target_ms": target_ms, "device": "cpu", "threads": 1}
        group.start(NATIVE, environ, **options)
        batch: int = group.wait_until_ready()[0]["batch"]
        return batch
