"""Frozen settings of the control process; `app` makes them from what the administrator writes.

Sizes are bytes, times are seconds. Nothing here reads a file or the environment.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jgpu.broker.control.executors.watchdog import Patience
from jgpu.broker.control.quotas.scopes import QuotaSettings
from jgpu.broker.settings import ExecutorSettings
from jgpu.errors import ConfigError

__all__ = ["DEVICES", "BrokerSettings"]

DEVICES = ("auto", "cuda", "cpu", "null", "cuda-on-host")


def _default_command() -> tuple[str, ...]:
    # -P: the broker's working directory is no place to import code from.
    return (sys.executable, "-P", "-m", "jgpu.broker.executor")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker: its socket, whom it serves, its executor, its patience."""

    socket: Path
    #: "auto" tries cuda and serves from cpu where that fails
    device: str = "auto"
    #: no other broker of the host may have the GPU
    claims_gpu: bool = True
    #: everything but `device`, which the line above decides
    executor: ExecutorSettings = field(default_factory=lambda: ExecutorSettings(device="cpu"))
    #: group that may connect besides the owner; empty: the owner alone
    group: str = ""
    #: a broker that one user's kernel or `jgpu run` started
    private: bool = False
    #: ends after so long without seats and sessions; 0: never
    idle_exit_s: float = 0.0
    #: where administrators are heard; None: the one socket is its owner's, who administers
    admin_socket: Path | None = None
    #: group that may connect there besides the owner and root; empty: these alone
    admin_group: str = ""
    max_sessions: int = 256
    #: what one identity may have at once, so that others find some left; 0: see `shares`
    max_user_sessions: int = 0
    max_user_seats: int = 0
    #: connections that wait for their answer
    max_user_connections: int = 64
    #: bytes of memory that sessions share with the broker
    max_user_arenas: int = 0
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    #: SQLAlchemy's URL of the usage ledger; empty: a SQLite file in the executor's spool directory
    ledger: str = ""
    #: device time is asked for, and written, so often
    usage_interval_s: float = 5.0
    #: for so long events stay on record
    keep_events_s: float = 180 * 86400.0
    handshake_timeout_s: float = 5.0
    start_timeout_s: float = 180.0
    stop_timeout_s: float = 5.0
    #: with what does not end
    patience: Patience = field(default_factory=Patience)
    #: an executor that ends more often than this within the window is left alone for a while
    crash_limit: int = 5
    crash_window_s: float = 60.0
    cool_down_s: float = 60.0
    #: a user whose programs ended executors so often within the window is held off for the pause
    user_crash_limit: int = 5
    user_crash_window_s: float = 600.0
    user_crash_pause_s: float = 600.0
    executor_command: tuple[str, ...] = field(default_factory=_default_command)
    #: set in executors' environment on top of what jgpu sets itself
    executor_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger_url(self) -> str:
        """The ledger's URL."""
        return self.ledger or f"sqlite:///{Path(self.executor.spool or '.', 'usage.sqlite')}"

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(
                f"The device is {self.device!r}; it can be one of {', '.join(DEVICES)}."
            )
        if self.max_sessions < 1:
            raise ConfigError(f"max_sessions is {self.max_sessions}; it must be at least 1.")
        if self.max_user_connections < 1:
            raise ConfigError(
                f"max_user_connections is {self.max_user_connections}; it must be at least 1."
            )
        if min(self.handshake_timeout_s, self.start_timeout_s) <= 0:
            raise ConfigError("handshake_timeout_s and start_timeout_s must be above 0 seconds.")
        if self.usage_interval_s <= 0:
            raise ConfigError("usage_interval_s must be above 0 seconds.")
        if not self.executor_command:
            raise ConfigError("executor_command is empty; it must name a program.")
