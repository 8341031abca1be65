"""Starts a user's own broker where none answers, once, whoever needs it first.

Blocks its caller (the provisioner calls it in a thread) until the broker takes connections, which
is a process start and never the device: the control process listens before its executor is ready.

Invariant: a broker is started only at the user's own address and only by the holder of the start
lock, after seeing that nobody answers.
"""

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jgpu.errors import BrokerUnreachable, HostError
from jgpu.kernelprovider.environment import outer_environment
from jgpu.requirements import BROKER, lacking
from jgpu.wire.address import Address, make_directory
from jgpu.wire.asking import connect

__all__ = ["BROKER_PYTHON", "answers", "broker_command", "start"]

#: Names an interpreter that has the broker's extras, where the one that starts kernels has not.
BROKER_PYTHON: Final = "JGPU_BROKER_PYTHON"
#: what a broker starts without: tables in a terminal, the ledger of a host's broker
_SPARED: Final = ("rich", "sqlalchemy")
_MODULES: Final = tuple(name for name in BROKER.values() if name not in _SPARED)
_POLL_S: Final = 0.02
_LOG_BYTES: Final = 4 << 20


def start(
    address: Address,
    *,
    timeout_s: float = 20.0,
    environ: Mapping[str, str] = os.environ,
    command: Sequence[str] = (),
) -> None:
    """Return when a broker takes connections at the user's `address`, starting one if need be.

    Raises `BrokerUnreachable` when that fails, with the broker's last words. `command` is for
    tests; the default is this interpreter's `jgpu broker --private`.
    """
    if not address.may_be_private:
        raise BrokerUnreachable(f"No private broker is started at {address}.")
    directory = make_directory(address.path.parent)
    deadline = time.monotonic() + timeout_s
    with _locked(directory / "start.lock", deadline):
        if not answers(address):
            words = list(command) or broker_command(address, environ)
            _launch(address, words, directory / "broker.log", environ, deadline)


def answers(address: Address) -> bool:
    """Whether somebody takes connections at the address; `BrokerRefused` passes through."""
    try:
        connect(address, 1.0).close()
    except BrokerUnreachable:
        return False
    return True


def broker_command(address: Address, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The words that start a private broker; `BrokerUnreachable` where its parts are missing."""
    python = environ.get(BROKER_PYTHON) or sys.executable
    if python == sys.executable and (missing := lacking(_MODULES)):
        raise BrokerUnreachable(
            f"No broker runs for you on this host, and this Python ({python}) cannot start one "
            f"because it lacks {', '.join(missing)}: install jgpu[broker] into it, or let "
            f"{BROKER_PYTHON} name a Python that has it."
        )
    return [python, "-m", "jgpu", "broker", "--private", "--socket", os.fspath(address.path)]


def _launch(
    address: Address,
    command: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    deadline: float,
) -> None:
    """Start the detached process and wait until it listens, ends or is late."""
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    begin = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        process = subprocess.Popen(  # its own session: a terminal's Ctrl-C and hang-up pass it by
            command,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            env=outer_environment(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise BrokerUnreachable(
            f"The private broker cannot be started: {command[0]}: {error.strerror}."
        ) from None
    finally:
        os.close(descriptor)
    # Reap it whenever it ends; nobody else waits for it, and it may outlive this process.
    threading.Thread(target=process.wait, name="jgpu-private-broker", daemon=True).start()
    while not answers(address):
        if process.poll() is not None:
            raise BrokerUnreachable(
                f"The private broker ended at once with status {process.returncode}: "
                f"{_last_line(log, begin)} (log: {log})"
            )
        if time.monotonic() > deadline:
            raise BrokerUnreachable(
                f"The private broker (process {process.pid}) is not ready yet; try again in a "
                f"moment. Its log is {log}."
            )
        time.sleep(_POLL_S)


@contextmanager
def _locked(path: Path, deadline: float) -> Iterator[None]:
    """Hold the lock file; it frees itself when its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BrokerUnreachable(
                        f"Another process has been starting your broker for too long; it holds "
                        f"{path}."
                    ) from None
                time.sleep(_POLL_S)
            except OSError as error:
                raise HostError(f"{path} cannot be locked: {error.strerror}.") from None
        yield
    finally:
        os.close(descriptor)


def _last_line(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read(1 << 16).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
