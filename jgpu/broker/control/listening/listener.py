"""A listening socket: made so that nobody else's file is touched and nobody slips in.

A lock beside the socket decides between two brokers that start together; who holds it may replace
a socket that nobody answers any more. The socket has its mode and group, and listens, before it has
its name, and lies in a directory where only its owner and root can put another in its place.
"""

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
from pathlib import Path
from typing import Final

from jgpu.broker.control.listening.identity import peer_of
from jgpu.errors import ConfigError
from jgpu.wire.address import MAX_SOCKET_PATH

__all__ = ["Listener"]

_BACKLOG: Final = 512


class Listener:
    """The listening socket at `path`, from construction until `close`.

    Raises `ConfigError` if a broker answers there already, or the place is unsafe or unfit.
    """

    def __init__(self, path: Path, group: str = "", *, for_all: bool = False) -> None:
        """`for_all`: whoever gets as far as its directory may connect."""
        self.path = path
        self._umask = 0o111 if for_all else 0o177
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise ConfigError(
                f"The socket's path {path} is longer than the {MAX_SOCKET_PATH} bytes that Linux "
                "allows; choose a shorter one."
            )
        self._group_id = _group_id(group)
        _check_directory(path.parent)
        self._lock_path = path.with_name(path.name + ".lock")
        self._lock = _take_lock(self._lock_path, path)
        try:
            self._clear()
            self.socket = self._bind()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def is_gone(self) -> bool:
        """Whether the name leads here no more: it was removed, or is another's."""
        try:
            return _place(self.path.lstat()) != self._place
        except OSError:
            return True

    def renew(self) -> None:
        """Listen under the name again, on a new socket; nobody may wait on the one before.

        Raises `ConfigError` where another broker has taken the name, or it cannot be had.
        """
        _check_directory(self.path.parent)
        if not self._lock_path.exists():
            lock = _take_lock(self._lock_path, self.path)
            os.close(self._lock)
            self._lock = lock
        self._clear()
        before, self.socket = self.socket, self._bind()
        before.close()

    def close(self) -> None:
        """Take the name away, then the socket; connections that were accepted stay. Repeatable."""
        if self.socket.fileno() < 0:
            return
        if not self.is_gone:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.socket.close()
        os.close(self._lock)

    def _clear(self) -> None:
        """Remove a dead broker's socket; refuse to touch anything else."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ConfigError(
                f"{self.path} exists and is no socket. Remove it, or choose another --socket."
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(os.fspath(self.path))
            except (ConnectionRefusedError, FileNotFoundError):
                pass
            except OSError as error:
                raise ConfigError(
                    f"Cannot tell whether a broker serves at {self.path}: {error.strerror}."
                ) from None
            else:
                raise ConfigError(_occupied(self.path, peer_of(probe).pid))
        self.path.unlink(missing_ok=True)

    def _bind(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Under another name until it listens: whoever finds a socket is never refused. As long as
        # the name, whose length Linux limits.
        made = self.path.with_name(self.path.name[:-1] + "~")
        before = os.umask(self._umask)
        try:
            if made.is_socket():  # of a broker that was killed just then
                made.unlink()
            listening.bind(os.fspath(made))
            if self._group_id is not None:
                os.chown(made, -1, self._group_id)
                made.chmod(0o660)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            made.rename(self.path)
            self._place = _place(self.path.lstat())
        except OSError as error:
            listening.close()
            if made.is_socket():
                made.unlink()
            raise ConfigError(
                f"The socket {self.path} cannot be made: {error.strerror or error}."
            ) from None
        finally:
            os.umask(before)
        return listening


def _place(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _group_id(group: str) -> int | None:
    if not group:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(
            f"There is no group {group!r} on this host. Make it with groupadd, or do without "
            "--group."
        ) from None


def _check_directory(directory: Path) -> None:
    """The directory must be ours or root's, and writable by others only if it is sticky."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise ConfigError(
            f"The socket's directory {directory} cannot be used: {error.strerror}."
        ) from None
    if found.st_uid not in (0, os.getuid()):
        raise ConfigError(
            f"The socket's directory {directory} belongs to uid {found.st_uid}, who could replace "
            "the socket. Choose a directory of your own."
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        raise ConfigError(
            f"The socket's directory {directory} can be written by others, who could replace the "
            "socket. Take that right away (chmod go-w), or choose another directory."
        )


def _take_lock(path: Path, socket_path: Path) -> int:
    """An exclusive lock for as long as this process lives; its pid is in the file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"The lock {path} cannot be made: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise ConfigError(_occupied(socket_path, int(owner) if owner.isdecimal() else 0)) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _occupied(path: Path, pid: int) -> str:
    who = f"A broker (pid {pid})" if pid else "A broker"
    return f"{who} serves at {path} already. Use it, stop it, or choose another --socket."
