"""The one tree of errors, free of torch.

Every class says whose fault it is (`fault`) and what to do next (`advice`). The sentence for the
user is `str(error)`; `reason` is a short stable word for logs and metrics and never holds user
text. Errors that PyTorch users catch by torch's own classes (`torch.OutOfMemoryError`,
`IndexError`, ...) are made in `jgpu.device` and inherit from the classes here.

    JgpuError
    ├── NotebookError                  the notebook's code
    │   ├── NotSupported               the shared device cannot do this
    │   ├── QuotaExceeded              more than the user may have
    │   │   └── BudgetExceeded         the user's device time of this period is used up
    │   ├── HeldOff                    the user's programs ended the device too often
    │   ├── WorkFailed                 an op failed on the device
    │   │   ├── ProgramRefused         a program that has ended the device
    │   │   └── WorkCancelled          an interrupt stopped work, or took it back
    │   └── PoisonedTensor             a tensor whose computation failed earlier is used again
    ├── HostError                      the installation, the administrator
    │   ├── BrokerUnreachable          nobody answers at the address
    │   ├── BrokerRefused              the broker answers, but will not have this client
    │   ├── VersionMismatch            protocol or torch do not fit
    │   └── ConfigError                a setting that makes no sense
    ├── DeviceLost                     the broker or its device ended; tensors are gone
    └── ProtocolError                  a broken or hostile client or broker
        ├── FrameError                 bytes that are not a frame, too large, out of order
        └── ProgramError               a program that may not run
"""

__all__ = [
    "BrokerRefused",
    "BrokerUnreachable",
    "BudgetExceeded",
    "ConfigError",
    "DeviceLost",
    "FrameError",
    "HeldOff",
    "HostError",
    "JgpuError",
    "NotSupported",
    "NotebookError",
    "PoisonedTensor",
    "ProgramError",
    "ProgramRefused",
    "ProtocolError",
    "QuotaExceeded",
    "VersionMismatch",
    "WorkCancelled",
    "WorkFailed",
]


class JgpuError(Exception):
    """Base of everything that jgpu raises on purpose."""

    fault = "jgpu"
    advice = ""
    reason = "error"


class _OneLine:
    """Shown by IPython as one line: no line of the notebook is at fault, so no traceback helps."""

    advice: str

    def _render_traceback_(self) -> list[str]:
        text = str(self)
        if self.advice and self.advice not in text:
            text = f"{text} {self.advice}"
        return [f"{type(self).__name__}: {text}"]


class NotebookError(JgpuError):
    """The notebook asked for something that cannot be had."""

    fault = "the notebook"
    reason = "notebook"


class NotSupported(NotebookError, RuntimeError):
    """The shared device cannot do this; the sentence says what to do instead."""

    reason = "not_supported"


class QuotaExceeded(NotebookError, RuntimeError):
    """More memory, sessions or time than this user may have."""

    reason = "quota"


class BudgetExceeded(_OneLine, QuotaExceeded):
    """The user's device time of this period is used up, and new work is refused."""

    fault = "the user's budget"
    advice = "An administrator can raise it; `jgpu quota usage` shows it."
    reason = "budget"


class HeldOff(_OneLine, NotebookError, RuntimeError):
    """The user's programs have ended the shared device again and again; they wait for a while."""

    fault = "the user's programs"
    reason = "held_off"


class WorkFailed(NotebookError, RuntimeError):
    """An op that was already sent failed on the device; names the op and the notebook line."""

    reason = "work_failed"
    #: the name of the op, where one failed
    op = ""
    #: what native PyTorch raises in its place
    native: BaseException | None = None


class ProgramRefused(WorkFailed):
    """A program that has ended the shared device is not run again."""

    reason = "program_refused"


class WorkCancelled(WorkFailed):
    """Work was stopped, or taken back before it started, by an interrupt."""

    reason = "cancelled"


class PoisonedTensor(NotebookError, RuntimeError):
    """A tensor whose computation failed, was cancelled, or whose device is gone is used again."""

    reason = "poisoned"


class HostError(_OneLine, JgpuError):
    """The installation of this host is at fault."""

    fault = "the host's installation"
    reason = "host"


class BrokerUnreachable(HostError, ConnectionError):
    """Nobody answers at the broker's address and none could be started."""

    advice = "Run `jgpu doctor` in a terminal on this host."
    reason = "unreachable"


class BrokerRefused(HostError, ConnectionError):
    """The broker answers but will not have this client."""

    reason = "refused"


class VersionMismatch(HostError, RuntimeError):
    """Client and broker, or jgpu and torch, are of versions that do not fit together."""

    reason = "version"


class ConfigError(HostError, ValueError):
    """A setting makes no sense; the sentence names the setting and its value."""

    reason = "config"


class DeviceLost(_OneLine, JgpuError, RuntimeError):
    """The broker or its device ended while this session had tensors there."""

    fault = "the broker or its device"
    advice = "Make the lost tensors again: rerun the cells that put them on the device."
    reason = "device_lost"


class ProtocolError(JgpuError):
    """The other end does not keep to the protocol; its session ends, nobody else's does."""

    fault = "the other end of the connection"
    reason = "protocol"


class FrameError(ProtocolError):
    """Bytes that are no frame: wrong magic, checksum, length, order or type."""

    reason = "frame"


class ProgramError(ProtocolError):
    """A program that may not run: unknown op, broken contract, geometry past a storage's end."""

    reason = "program"
    #: which of its ops is at fault, and that op's name, where one is
    op = 0
    name = ""
