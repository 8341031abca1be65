"""Runs the suite under every condition that it has to pass in, and prints a table.

    make test-anywhere                                  the everyday suite, some hours
    make test-anywhere ARGS="--only user tests/e2e"     one condition, one folder

The conditions: three times beside two busy loops, with a private broker of the same user, in the
background with all signals ignored and an environment made to disturb, and, where root runs this,
as a user of its own from a fresh clone with the host's Python. Figures go to `bench/results`.
"""

import argparse
import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import write_result

from jgpu.kernelprovider.seat import leave, take

ROOT = Path(__file__).parents[1]
USER = "jgpu-tests"
HOST_PYTHON = "/usr/bin/python3"
EVERYDAY = [
    *("-q", "--numprocesses", "logical", "--maxprocesses", "4"),
    *("--dist", "loadfile", "--no-loadscope-reorder", "-m", "not slow and not long"),
]
DISTURBING = {
    "CI": "true",
    "COLUMNS": "20",
    "HTTP_PROXY": "http://localhost:1",
    "JGPU_ADDRESS": "unix:/nowhere/broker.sock",
    "JGPU_LABEL": "another's",
    "JUPYTER_PLATFORM_DIRS": "1",
    "LC_ALL": "C",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "3",
    "PYTHONSTARTUP": "/nowhere/startup.py",
    "TERM": "dumb",
    "TZ": "Asia/Kathmandu",
    "XDG_STATE_HOME": "/nowhere",
}


class Runs:
    """What was run so far; each run is a row of the table."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.rows = []

    def run(self, condition, *, root=ROOT, python=sys.executable, **options):
        """Run the tests once and keep how it ended."""
        began = time.monotonic()
        command = [python, "-m", "pytest", *EVERYDAY, *self.arguments]
        say(f"\n== {condition}: {' '.join(map(str, command))}")
        last = []
        with subprocess.Popen(
            command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
        ) as process:
            for line in process.stdout:
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
                last = [*last[-20:], line.decode(errors="replace").strip()]
        counts = next((text for text in reversed(last) if re.search(r"\d+ \w+.* in ", text)), "?")
        self.keep(condition, counts.strip("= "), process.returncode, time.monotonic() - began)

    def keep(self, condition, outcome, status, seconds=0.0):
        """A row; `status` None where nothing could be run."""
        row = {"condition": condition, "outcome": outcome, "status": status}
        self.rows.append(row | {"minutes": round(seconds / 60, 1)})


def say(line):
    """Print a line, before what the next run prints."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def beside_busy_loops(runs):
    """Three times, with as many busy loops as a small machine has cores."""
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(loop.wait, 20)
            stack.callback(loop.kill)
        for count in (1, 2, 3):
            runs.run(f"busy loops, {count} of 3")


def beside_a_private_broker(runs):
    """With the user's own broker, started as a notebook starts it, or found there."""
    seat = take(kernel_id="anywhere", label="tests/anywhere.py")
    try:
        runs.run("a private broker")
    finally:
        leave(seat)  # it ends when it is unused


def in_the_background(runs):
    """As a CI's runner or `nohup` starts it: in a session of its own, signals ignored."""

    def ignore():
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)

    with tempfile.TemporaryDirectory(prefix="a" * 80) as long:
        runs.run(
            "background, signals ignored",
            env=os.environ | DISTURBING | {"TMPDIR": long},
            preexec_fn=ignore,
            restore_signals=False,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )


def as_another_user(runs):
    """In a fresh clone of what is committed, with the host's Python."""
    condition = "another user"
    if os.getuid() != 0:
        runs.keep(condition, "only root can become another user", None)
        return
    with _user() as user, tempfile.TemporaryDirectory(prefix="jgpu-clone-") as directory:
        clone = Path(directory, "jgpu")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for name in (".config/pip", ".pip"):  # where packages come from
            with contextlib.suppress(FileNotFoundError):
                shutil.copytree(Path.home() / name, Path(directory, name))
        subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", directory], check=True)
        passed = {k: v for k, v in os.environ.items() if re.match("PIP_|SSL_|OPENBLAS|.*_proxy", k)}
        identity = {
            "user": user.pw_uid,
            "group": user.pw_gid,
            "extra_groups": [],
            "env": passed | {"HOME": directory, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        }
        made = subprocess.run(["make", "env", f"PYTHON={HOST_PYTHON}"], cwd=clone, **identity)
        if made.returncode:
            runs.keep(condition, f"make env PYTHON={HOST_PYTHON} failed", made.returncode)
            return
        runs.run(condition, root=clone, python=clone / ".venv" / "bin" / "python", **identity)


@contextlib.contextmanager
def _user():
    """An account without privileges that goes again."""
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", USER], check=True)
    try:
        yield pwd.getpwnam(USER)
    finally:
        shutil.rmtree(f"/tmp/pytest-of-{USER}", ignore_errors=True)
        subprocess.run(["userdel", USER], check=True)


CONDITIONS = {
    "busy": beside_busy_loops,
    "broker": beside_a_private_broker,
    "background": in_the_background,
    "user": as_another_user,
}


def main():
    """Run them and say how it went; 1 where a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=CONDITIONS, action="append", help="this condition")
    options, arguments = parser.parse_known_args()
    runs = Runs(arguments)
    for name in options.only or CONDITIONS:
        CONDITIONS[name](runs)
    write_result("suite-anywhere", {"arguments": arguments, "runs": runs.rows})
    say(f"\n{'CONDITION':28} {'MINUTES':>7}  OUTCOME")
    for row in runs.rows:
        say(f"{row['condition']:28} {row['minutes']:7.1f}  {row['outcome']}")
    return int(any(row["status"] for row in runs.rows))


if __name__ == "__main__":
    sys.exit(main())
