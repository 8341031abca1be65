"""Processes that tests start: each under a deadline, each ended with all that it started.

`start` and `run` are `subprocess.Popen` and `subprocess.run` with two differences. Every wait ends
by itself, after 100 seconds unless another time is given. And every process leads a group of its
own, which is ended as a whole: a grandchild that holds a pipe keeps nobody waiting.

`Watch` knows every process of this run of the tests, whoever its parent is by now, and so which
ones a test has left behind.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
from world import MARK

__all__ = ["DEADLINE_S", "Process", "Watch", "run", "start"]

DEADLINE_S = 100.0
#: How long what is ending anyway may take.
_GRACE_S = 10.0
#: how long a process may take to become another program, on a machine with much else to do
_BECOMING_S = 2.0
#: processes that were seen to have no environment for so long: theirs is empty
_BARE = set()
_SPAWNS = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}


class Process(subprocess.Popen):
    """A process whose waits have deadlines, and whose end is that of all it started."""

    def __init__(self, command, **options):
        options.setdefault("start_new_session", True)
        super().__init__(command, **options)

    def wait(self, timeout=DEADLINE_S):
        """Its exit status; `subprocess.TimeoutExpired` after so many seconds."""
        return super().wait(timeout)

    def communicate(self, input=None, timeout=DEADLINE_S):  # noqa: A002
        """What it says until its end; `subprocess.TimeoutExpired` after so many seconds."""
        return super().communicate(input, timeout)

    def line(self, timeout_s=DEADLINE_S):
        """The next line of its output; "" at its end, which a late line brings about."""
        late = threading.Timer(timeout_s, self.end, (signal.SIGKILL,))
        late.daemon = True
        late.start()
        try:
            return self.stdout.readline()
        finally:
            late.cancel()

    def end(self, number=signal.SIGTERM, timeout_s=20.0):
        """End it by this signal, and then whatever is left of its family; its exit status."""
        family = _family(self.pid)
        if self.poll() is None:
            self.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(timeout_s)
        kill({*family, *_family(self.pid)})
        return self.wait()

    def __exit__(self, *exc):
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # nobody reads what was not written yet
                    pipe.close()
        self.end(signal.SIGKILL)


def start(command, **options):
    """A `Process`; as a context manager it is killed at the end of the block."""
    return Process(command, **options)


def run(command, *, input=None, timeout=DEADLINE_S, check=False, capture_output=False, **options):  # noqa: A002
    """As `subprocess.run`, with a deadline that holds also where a grandchild keeps a pipe."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with start(command, **options) as process:
        out, err = process.communicate(input, timeout)
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, err)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def kill(processes):
    """Kill these processes and wait until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for process in processes:
        deadline = time.monotonic() + _GRACE_S
        while _is_alive(process):
            assert time.monotonic() < deadline, f"{process} survives SIGKILL"
            time.sleep(0.005)


class Watch:
    """Which processes of the tests are there, and to whom they belong."""

    def __init__(self):
        self._owned = {}
        self.spawned = 0
        sys.addaudithook(self._count)

    def _count(self, event, _):
        if event in _SPAWNS:
            self.spawned += 1

    def own(self, owner, processes):
        """These are `owner`'s, and may stay as long as it does."""
        self._owned.setdefault(owner, set()).update(processes)

    def disown(self, owner):
        """The owner is gone; whether anything was its."""
        return bool(self._owned.pop(owner, None))

    def left(self):
        """The processes of nobody, once those that are ending have ended."""
        deadline = time.monotonic() + _GRACE_S
        while (found := self._of_nobody()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def _of_nobody(self):
        owned = set().union(*self._owned.values())
        found = set()
        for process in of_the_tests():
            with contextlib.suppress(psutil.NoSuchProcess):
                if not owned & {process, *process.parents()} and not _is_pythons_own(process):
                    found.add(process)
        return found


def of_the_tests():
    """Every living process of this run of the tests but this one."""
    found = set(psutil.Process().children(recursive=True))
    mark = f"{MARK}={os.environ[MARK]}\0".encode()
    for pid in psutil.pids():
        # Not ours to read: somebody else's, or over.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if pid != os.getpid() and mark in _environ(pid):
                found.add(psutil.Process(pid))
    return {process for process in found if _is_alive(process)}


def _environ(pid):
    """A process's environment, which is empty for a moment while it becomes another program."""
    place = Path(f"/proc/{pid}")
    deadline = time.monotonic() + (0.0 if pid in _BARE else _BECOMING_S)
    while not (text := (place / "environ").read_bytes()):
        if not os.readlink(place / "exe") or time.monotonic() >= deadline:
            _BARE.add(pid)
            break
        time.sleep(0.0005)
    return text


def described(process):
    """A process in one line."""
    try:
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return f"{process.pid}, which ended meanwhile"


def _family(pid):
    """The living processes that one started: its descendants, and what is left of its group."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        found.update(psutil.Process(pid).children(recursive=True))
    for process in of_the_tests():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == pid:
                found.add(process)
    return {process for process in found if _is_alive(process)}


def _is_alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_pythons_own(process):
    """The standard library starts it once, and it stays as long as this process."""
    return process.ppid() == os.getpid() and any(
        "multiprocessing.resource_tracker" in word for word in process.cmdline()
    )
