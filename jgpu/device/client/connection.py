"""Whether there is a connection, which one, and what becomes of it.

Made at first use, and again at the first use after it was lost. Everything that lives on the device
belongs to one `generation`: whoever keeps something of it is told by `on_forget` when it is gone.
What arrives is handed to `handlers` by its type, one message at a time, and never torn by an
interrupt.

Invariant: there is a link where the phase says so, and only there (`validate`).
"""

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from jgpu import errors
from jgpu.device.client.transport import Transport
from jgpu.device.interrupts import quiet
from jgpu.wire import messages as m

__all__ = ["BrokerConnection", "ConnectionPhase"]

#: how long the executor may take to open a session: there may be a queue before the device
_OPENS_S: Final = 3600.0


class ConnectionPhase(Enum):
    """How far the connection is."""

    #: there was none yet, or it was closed in good order
    UNUSED = "unused"
    #: there is one, and the executor has not said yet that it has the session
    OPENING = "opening"
    OPEN = "open"
    #: the last one ended; the next use makes another
    LOST = "lost"
    #: it is the parent process's
    FORKED = "forked"


_OPEN: Final = ConnectionPhase.OPEN
_PHASE: Final = ConnectionPhase
#: what may follow
_NEXT: Final = {
    _PHASE.UNUSED: {_PHASE.OPENING, _PHASE.FORKED},
    _PHASE.OPENING: {_PHASE.OPEN, _PHASE.LOST, _PHASE.UNUSED, _PHASE.FORKED},
    _PHASE.OPEN: {_PHASE.LOST, _PHASE.UNUSED, _PHASE.FORKED},
    _PHASE.LOST: {_PHASE.OPENING, _PHASE.FORKED},
    _PHASE.FORKED: {_PHASE.FORKED},
}


class BrokerConnection:
    """The one connection of the process; others ask it for the link and let it take messages in."""

    def __init__(self, connect: Callable[[], Transport]) -> None:
        self._connect = connect
        self.phase = ConnectionPhase.UNUSED
        self.link: Transport | None = None
        #: number of what is, or will be, on the device; what is of another is lost
        self.generation = 1
        #: what the executor said when it took the session, last
        self.ready: m.Ready | None = None
        #: what to raise where the device is gone, and why it is
        self.error: errors.DeviceLost | None = None
        self.why_lost = ""
        #: makes of why everything on the device is gone what the user reads
        self.on_lost: Callable[[str], str] = lambda text: text
        #: called with what the broker says of the device and of this user's part of it
        self.on_ready: Callable[[m.Ready], None] = lambda ready: None
        #: called in turn when everything on the device is gone
        self.on_forget: list[Callable[[], None]] = []
        #: what to do with a message of each type
        self.handlers: dict[type, Callable[[Any], None]] = {}

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that has the connection."""
        return self.phase is _PHASE.FORKED

    @property
    def tells_values(self) -> bool:
        """Whether the executor can tell values unasked."""
        return self.ready is not None and self.ready.device.tells_values

    @property
    def number(self) -> int | None:
        """The broker's number for this session; None before it is open."""
        return self.link.welcome.session if self.link is not None else None

    @property
    def waited(self) -> float:
        """Seconds that the process has waited for the broker, now included."""
        return self.link.waited if self.link is not None else 0.0

    @property
    def bytes_sent(self) -> int:
        """Bytes sent by the present connection."""
        return self.link.sent if self.link is not None else 0

    # -- open and close ----------------------------------------------------------------------

    def open(self) -> Transport:
        """The link to an executor that has the session; makes one, and waits, where need be."""
        link = self.link
        if link is not None and self.phase is _OPEN:
            return link
        return self._begin()

    def _begin(self) -> Transport:
        if self.is_forked:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        link = self.link
        if link is None:
            link = self._connect()
            try:
                with quiet():
                    self._go(_PHASE.OPENING, link)
                    self.error, self.ready = None, None
            finally:
                if self.link is not link:
                    link.close()
        while self.ready is None:
            self.pump(link, _OPENS_S)
            self.still(link, self.generation)
        return link

    def take_ready(self, ready: m.Ready) -> None:
        """The executor has the session, or says anew what this user may have."""
        self.ready = ready
        if self.phase is _PHASE.OPENING:
            self._go(_OPEN, self.link)
        self.on_ready(ready)

    def close(self) -> None:
        """End the session in good order."""
        link = self.link
        if link is None:
            return
        try:
            with suppress(errors.DeviceLost):
                with quiet():
                    link.queue(m.Quit())
                link.flush()
        finally:
            with quiet():
                link.close()
                self._go(_PHASE.UNUSED, None)

    def leave_to_parent(self) -> None:
        """This process is a forked child: the connection is its parent's, which keeps it."""
        link = self.link
        self._go(_PHASE.FORKED, None)
        if link is not None:
            link.close()

    def _go(self, phase: ConnectionPhase, link: Transport | None) -> None:
        assert phase in _NEXT[self.phase], f"{self.phase} to {phase}"
        self.phase, self.link = phase, link

    # -- in ----------------------------------------------------------------------------------

    def pump(self, link: Transport, timeout_s: float = 0.0) -> None:
        """Send what is queued and take in what is there, waiting up to `timeout_s` for it."""
        try:
            link.flush()
            link.receive(0.0 if link.inbox else timeout_s)
        except errors.DeviceLost as error:
            raise self.lost(error) from None
        except errors.FrameError as error:
            raise self.lost(errors.DeviceLost(f"The broker sent nonsense: {error}")) from None
        inbox, handlers = link.inbox, self.handlers
        while inbox and self.link is link:
            with quiet():
                message = inbox.popleft()
                handlers[type(message)](message)

    def still(self, link: Transport, generation: int) -> None:
        """Raise if the device that was asked is no longer the one there is."""
        if self.link is not link or self.generation != generation:
            raise self.error or errors.DeviceLost("The device was lost.")

    # -- loss --------------------------------------------------------------------------------

    def lost(self, error: errors.DeviceLost) -> errors.DeviceLost:
        """The connection ended: everything on the device is gone. Returns the error to raise."""
        if self.link is not None:
            self.drop(error)
        return self.error or error

    def drop(self, error: errors.DeviceLost) -> None:
        """End the connection: it is of no use any more."""
        link = self.link
        with quiet():
            if link is not None:
                self._go(_PHASE.LOST, None)
                link.close()
            self.forget(error)

    def forget(self, error: errors.DeviceLost) -> None:
        """Everything on the device is gone; the connection may go on, to another executor."""
        self.generation += 1
        for forget in self.on_forget:
            forget()
        self.why_lost = str(error)
        self.error = errors.DeviceLost(self.on_lost(self.why_lost))

    def validate(self) -> None:
        """Assert the module's invariant."""
        linked = self.phase in (_PHASE.OPENING, _PHASE.OPEN)
        assert (self.link is not None) is linked, self.phase
        assert self.phase is not _PHASE.OPEN or self.ready is not None
