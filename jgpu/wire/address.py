"""Where the broker is, and where a user's files are.

The address is looked for in this order: `JGPU_ADDRESS`, the system's socket, the user's. Where the
system's socket exists but does not answer, that is an error and never a reason for a private
broker. A user's directory survives logout and cleaners (so it is not below /run/user or /tmp),
belongs to one host even where homes are shared between hosts, and its socket's path fits the 107
bytes that the kernel allows.

Does not cover asking the broker (`asking`), sessions (`jgpu.device`) or starting a broker
(`jgpu.kernelprovider`).
"""

import os
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jgpu.errors import BrokerRefused, ConfigError

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
    "find",
    "find_for_administration",
    "login_name",
    "make_directory",
    "parse",
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
_SOCKET_NAME: Final = "broker.sock"
_ADMIN_NAME: Final = "admin.sock"


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
            f"This host has a broker at {system_socket}, but you ({login_name(os.getuid())}) may "
            "not enter its directory. Ask the administrator to let you in."
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
            f"{path} belongs to {login_name(found.st_uid)}, so no broker is run from there. Remove "
            "it, or set XDG_STATE_HOME to a directory of your own."
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


def login_name(uid: int) -> str:
    """The name of a Unix user, in sentences."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
