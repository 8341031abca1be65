"""A control group with a memory limit, below this process's own, where the host allows one.

Version 1 and version 2 of control groups; `ControlGroup` raises `ConfigError`, with the reason,
where neither lets this user make one.
"""

import contextlib
import time
from pathlib import Path
from typing import Any, Final

from jgpu.errors import ConfigError

__all__ = ["ControlGroup"]

_ROOT: Final = Path("/sys/fs/cgroup")
_LIMITS: Final = ("memory.limit_in_bytes", "memory.max")
_EMPTY_S: Final = 10.0


class ControlGroup:
    """A group that processes may join; removed when it is left. A context manager."""

    def __init__(
        self, name: str, *, root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")
    ) -> None:
        self._path = _own_group(root, own) / name
        try:
            self._path.mkdir()
        except OSError as error:
            raise ConfigError(f"No control group can be made: {error}.") from None
        found = [self._path / each for each in _LIMITS if (self._path / each).exists()]
        if not found:
            self._path.rmdir()
            raise ConfigError(f"Control groups in {self._path.parent} have no limit of memory.")
        self._limit = found[0]

    def __enter__(self) -> "ControlGroup":
        return self

    def __exit__(self, *_: Any) -> None:
        deadline = time.monotonic() + _EMPTY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # a process that was killed is still on its way
                self._path.rmdir()
                return
            time.sleep(0.1)

    def join(self) -> None:
        """Put the calling process in; its children come along."""
        (self._path / "cgroup.procs").write_text("0", encoding="ascii")

    def own_bytes(self) -> int:
        """Memory that its processes have for themselves, files not among it."""
        text = (self._path / "memory.stat").read_text(encoding="ascii")
        stat = dict(line.split() for line in text.splitlines())
        return int(stat["anon"] if "anon" in stat else stat["rss"])

    def limit(self, nbytes: int) -> None:
        """Kill processes of the group from here on where they would need more together."""
        self._limit.write_text(str(nbytes), encoding="ascii")


def _own_group(root: Path, own: Path) -> Path:
    """The directory of the group that this process's memory counts in."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="ascii").splitlines()]
    except OSError as error:
        raise ConfigError(f"There are no control groups here: {error}.") from None
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return root / "memory" / path.lstrip("/")
    for number, _, path in lines:
        if number == "0":
            return root / path.lstrip("/")
    raise ConfigError("There are no control groups here.")
