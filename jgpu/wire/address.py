"""Where the broker is, where a user's files are, and one question to the broker.

The address is looked for in this order: `JGPU_ADDRESS`, the system's socket, the user's. Where the
system's socket exists but does not answer, that is an error and never a reason for a private
broker. A user's directory survives logout and cleaners (so it is not below /run/user or /tmp),
belongs to one host even where homes are shared between hosts, and its socket's path fits the 107
bytes that the kernel allows.

Does not cover sessions (`jgpu.device`) or starting a broker (`jgpu.kernelprovider`).

The rule that must not be broken: bytes go only to a socket whose owner may be trusted with them:
this user, root, or a system account.
"""

import errno
import os
import pwd
import re
import socket
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import jgpu.errors
from jgpu.errors import BrokerRefused, BrokerUnreachable, ConfigError, FrameError, JgpuError
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import ControlMessage, ControlReply, Refused

__all__ = [
    "ADDRESS",
    "KERNEL_ID",
    "LABEL",
    "MAX_SOCKET_PATH",
    "NO_TICKET",
    "PRIORITY",
    "PROBLEM",
    "SERVER_FILES_NAME",
    "SYSTEM_SOCKET",
    "TICKET",
    "USER",
    "Address",
    "admin_socket",
    "ask",
    "check_owner",
    "connect",
    "find",
    "find_for_administration",
    "make_directory",
    "parse",
    "refusal",
    "user_directory",
    "user_socket",
]

#: Environment of a process with a seat. `JGPU_TICKET` alone turns `cuda` into the shared device;
#: it is NO_TICKET where no seat could be had, and JGPU_PROBLEM then holds the sentence that says
#: why. `JGPU_USER` is believed only by the user's own broker.
ADDRESS: Final = "JGPU_ADDRESS"
TICKET: Final = "JGPU_TICKET"
PROBLEM: Final = "JGPU_PROBLEM"
LABEL: Final = "JGPU_LABEL"
KERNEL_ID: Final = "JGPU_KERNEL_ID"
USER: Final = "JGPU_USER"
PRIORITY: Final = "JGPU_PRIORITY"
NO_TICKET: Final = "none"

SYSTEM_SOCKET: Final = Path("/run/jgpu/broker.sock")
#: beside the socket of one server of a hub: the folder that its JUPYTER_CONFIG_PATH is to name
SERVER_FILES_NAME: Final = "jupyter"
#: sun_path has 108 bytes, the last of them a zero.
MAX_SOCKET_PATH: Final = 107
#: Accounts below this number are the system's own (SYS_UID_MAX + 1 of login.defs).
_FIRST_PERSON: Final = 1000
_NOBODY: Final = 65534
_SOCKET_NAME: Final = "broker.sock"
_ADMIN_NAME: Final = "admin.sock"
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's Unix socket, and who named it: "environment", "hub", "system" or "user"."""

    path: Path
    origin: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def may_be_private(self) -> bool:
        """A broker may be started here by whoever needs one."""
        return self.origin == "user"


def find(
    environ: Mapping[str, str] = os.environ, *, system_socket: Path = SYSTEM_SOCKET
) -> Address:
    """The broker's address for a process with this environment; asks nobody.

    An address in the environment that is the user's own socket counts as the user's, so that the
    children of a process with a seat may start their private broker again.
    """
    own = user_socket(environ)
    if text := environ.get(ADDRESS):
        path = parse(text)
        return Address(path, "user" if path == own else "environment")
    try:
        system_socket.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Address(own, "user")
    except PermissionError:
        raise BrokerRefused(
            f"This host has a broker at {system_socket}, but you ({_name(os.getuid())}) may not "
            f"enter its directory. Ask the administrator to let you in."
        ) from None
    return Address(system_socket, "system")


def admin_socket(users: Path) -> Path:
    """Where the administrators' socket is unless its administrator says otherwise."""
    return users.with_name(_ADMIN_NAME)


def find_for_administration(
    environ: Mapping[str, str] = os.environ, *, system_socket: Path = SYSTEM_SOCKET
) -> Address:
    """The administrators' socket beside the one that `find` names, if this process may use it.

    Else that one itself: a private broker has no other, and everybody may ask about themselves.
    """
    where = find(environ, system_socket=system_socket)
    admin = admin_socket(where.path)
    origin = "system" if where.origin == "system" else "environment"  # never a reason to start one
    return Address(admin, origin) if os.access(admin, os.W_OK) else where


def parse(text: str) -> Path:
    """The path in `unix:/path`; `ConfigError` for anything else."""
    scheme, _, path = text.partition(":")
    if path.startswith("//"):
        path = path[2:]
    if scheme != "unix" or not path.startswith("/"):
        raise ConfigError(f"{ADDRESS} is {text!r}; it has to read unix:/path/of/the/socket.")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"The socket's path {path} is longer than the {MAX_SOCKET_PATH} bytes that Linux "
            "allows; choose a shorter one."
        )
    return Path(path)


# -- a user's files ------------------------------------------------------------------------------


def user_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """The socket of the user's private broker on this host."""
    return user_directory(environ) / _SOCKET_NAME


def user_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the user's socket, lock, log and spool are; `make_directory` makes it.

    `~/.local/state/jgpu/HOST` (or below XDG_STATE_HOME), or `/var/tmp/jgpu-UID` where that is too
    long for a socket or cannot be written.
    """
    fallback = Path("/var/tmp", f"jgpu-{os.getuid()}")
    state = environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        home = _home(environ)
        if not home:
            return fallback
        state = f"{home}/.local/state"
    # A home may be on several hosts; a socket is of one.
    host = re.sub(r"[^A-Za-z0-9_-]", "", os.uname().nodename.partition(".")[0])[:24] or "host"
    preferred = Path(state, "jgpu", host)
    fits = len(os.fsencode(preferred / _SOCKET_NAME)) <= MAX_SOCKET_PATH
    return preferred if fits and _writable(preferred) else fallback


def make_directory(path: Path) -> Path:
    """Make a directory that nobody else may enter (0700); refuse one that is somebody else's."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"The directory {path} cannot be made: {error.strerror}.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise BrokerRefused(
            f"{path} belongs to {_name(found.st_uid)}, so no broker is run from there. Remove it, "
            "or set XDG_STATE_HOME to a directory of your own."
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def _home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    if home.startswith("/"):
        return home
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's uid without an account
        return ""


def _writable(path: Path) -> bool:
    """Whether `path` is, or could be made, a directory to write in."""
    while not os.path.exists(path):  # false also where one may not look
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


# -- one question ----------------------------------------------------------------------------


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
            f"The socket {address.path} belongs to {_name(owner)}, who is neither you "
            f"({_name(user)}) nor a system account; nothing is sent there. Unset {ADDRESS}, or "
            "ask the administrator whose broker you should use."
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
            f"You ({_name(os.getuid())}) may not connect to the broker at {address}. Its "
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
        kind = getattr(jgpu.errors, name)
        if kind.reason == refused.reason:
            return kind(refused.text)  # type: ignore[no-any-return]
    return BrokerRefused(refused.text)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
