"""One question to the broker, and who is trusted to answer it.

Invariant: bytes go only to a socket whose owner may be trusted with them: this user, root, or a
system account.
"""

import errno
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import jgpu.errors
from jgpu.errors import BrokerRefused, BrokerUnreachable, FrameError, JgpuError
from jgpu.wire.address import ADDRESS, SYSTEM_SOCKET, Address, login_name
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import ControlMessage, ControlReply, Refused

__all__ = ["ask", "ask_for", "check_owner", "connect", "refusal"]

_Reply = TypeVar("_Reply", bound=ControlReply)

#: Accounts below this number are the system's own (SYS_UID_MAX + 1 of login.defs).
_FIRST_PERSON: Final = 1000
_NOBODY: Final = 65534
_CREDENTIALS: Final = struct.Struct("3i")


def ask(address: Address, message: ControlMessage, timeout_s: float = 5.0) -> ControlReply:
    """Send one request to the control process and return its reply; blocks up to `timeout_s`.

    Raises `BrokerUnreachable` where nobody answers in time, and for `Refused` the error of
    `jgpu.errors` that its reason names, `BrokerRefused` by default.
    """
    deadline = time.monotonic() + timeout_s
    with connect(address, timeout_s) as stream:
        try:
            stream.sendall(FrameWriter().encode(message, 0))
            reply = _receive(stream, deadline)
        except TimeoutError:
            raise BrokerUnreachable(
                f"The broker at {address} took the request and gave no answer within "
                f"{timeout_s:g} s."
            ) from None
        except OSError as error:
            raise BrokerUnreachable(
                f"The broker at {address} broke the connection ({error.strerror})."
            ) from None
        except FrameError as error:
            raise BrokerUnreachable(
                f"What listens at {address} does not speak jgpu's protocol, or that of another "
                f"version: {error}"
            ) from None
    if reply is None:
        raise BrokerUnreachable(f"The broker at {address} closed the connection unanswered.")
    if isinstance(reply, Refused):
        raise refusal(reply)
    return reply


def ask_for(
    address: Address, message: ControlMessage, kind: type[_Reply], timeout_s: float = 5.0
) -> _Reply:
    """Ask as `ask` does, for a reply of this kind; any other is `BrokerUnreachable`."""
    reply = ask(address, message, timeout_s)
    if not isinstance(reply, kind):
        raise BrokerUnreachable(f"The broker at {address} answered {type(reply).__name__}.")
    return reply


def connect(address: Address, timeout_s: float = 5.0) -> socket.socket:
    """A connected stream socket to a broker that may be trusted, with this timeout set."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        stream.settimeout(max(timeout_s, 0.001))
        check_owner(address, address.path.stat().st_uid)
        stream.connect(os.fspath(address.path))
        credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        check_owner(address, _CREDENTIALS.unpack(credentials)[1])
    except OSError as error:  # BrokerRefused is one, too
        stream.close()
        _explain(address, error)
    return stream


def check_owner(address: Address, owner: int, user: int | None = None) -> None:
    """`BrokerRefused` unless the socket is this user's, root's or a system account's.

    In a user namespace, as of a rootless container, all owners from outside look alike. There the
    system's socket is trusted, where nobody but them and this namespace's root could have put it.
    """
    user = os.getuid() if user is None else user
    if owner == _overflow_uid() and _is_namespaced():
        if address.path == SYSTEM_SOCKET and _is_walled(address.path.parent, owner):
            return
        raise BrokerRefused(
            f"The socket {address.path} belongs to somebody outside of this user namespace, and "
            f"who that is cannot be told from here; only {SYSTEM_SOCKET} is trusted then. Have the "
            "broker's directory mounted there."
        )
    if owner not in (user, 0) and owner >= _FIRST_PERSON:
        raise BrokerRefused(
            f"The socket {address.path} belongs to {login_name(owner)}, who is neither you "
            f"({login_name(user)}) nor a system account; nothing is sent there. Unset {ADDRESS}, "
            "or ask the administrator whose broker you should use."
        )


def _overflow_uid() -> int:
    """Who files belong to whose owner has no number here."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return _NOBODY


def _is_namespaced() -> bool:
    """Whether only some of the host's uids have a number here."""
    try:
        ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return False
    return ranges != [["0", "0", str((1 << 32) - 1)]]


def _is_walled(directory: Path, outside: int) -> bool:
    """Whether only root and those outside may put anything into a directory and those above it."""
    for each in (directory, *directory.parents):
        found = each.stat()
        if found.st_uid not in (0, outside) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True


def _receive(stream: socket.socket, deadline: float) -> ControlReply | None:
    reader: FrameReader[ControlReply] = FrameReader(ControlReply)
    while True:
        stream.settimeout(max(deadline - time.monotonic(), 0.001))
        data = stream.recv(1 << 16)
        if not data:
            return None
        for reply in reader.feed(data):
            return reply


def _explain(address: Address, error: OSError) -> NoReturn:
    """Turn what `connect` met into a sentence for the user; never returns."""
    if isinstance(error, BrokerRefused):
        raise error
    if error.errno in (errno.EACCES, errno.EPERM):
        raise BrokerRefused(
            f"You ({login_name(os.getuid())}) may not connect to the broker at {address}. Its "
            "administrator decides who may, by the socket's group."
        ) from None
    if error.errno == errno.ENOENT:
        what = f"There is no broker at {address}."
    elif isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
        what = f"The broker at {address} is there but takes no connection; it may be overloaded."
    elif error.errno == errno.ECONNREFUSED:
        what = f"The broker at {address} has ended."
    else:
        what = f"The broker at {address} cannot be reached: {error.strerror or error}."
    if address.origin == "system":
        what += " An administrator starts it with `systemctl start jgpu-broker`."
    elif address.origin == "environment":
        what += f" {ADDRESS} names it."
    raise BrokerUnreachable(what) from None


def refusal(refused: Refused) -> JgpuError:
    """The error of `jgpu.errors` that a refusal's reason names, `BrokerRefused` by default."""
    for name in jgpu.errors.__all__:
        kind: type[JgpuError] = getattr(jgpu.errors, name)
        if kind.reason == refused.reason:
            return kind(refused.text)
    return BrokerRefused(refused.text)
