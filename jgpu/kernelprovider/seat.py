"""Taking and giving up a seat on the shared device; blocking, and no more than one question each.

A seat is a ticket that the broker knows. Who takes it (the provisioner, `jgpu run`) starts the
user's private broker where no other is meant to answer.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jgpu.errors import BrokerUnreachable
from jgpu.kernelprovider import privatebroker
from jgpu.wire.address import USER, Address, find
from jgpu.wire.asking import ask, ask_for
from jgpu.wire.fields import sendable
from jgpu.wire.limits import MAX_NAME, PROTOCOL
from jgpu.wire.messages import LeaveSeat, SeatTaken, TakeSeat

__all__ = ["LABEL_LENGTH", "Seat", "leave", "take"]

#: A notebook's path is cut to this many characters.
LABEL_LENGTH: Final = 1024


@dataclass(frozen=True, slots=True)
class Seat:
    """A ticket and the broker that gave it."""

    address: Address
    ticket: str


def take(
    environ: Mapping[str, str] = os.environ,
    *,
    kernel_id: str,
    label: str = "",
    timeout_s: float = 20.0,
) -> Seat:
    """A seat at the broker that `environ` leads to, starting a private one where that is allowed.

    Raises errors of `jgpu.errors` whose sentence is fit for the user.
    """
    address = find(environ)
    user = sendable(environ.get(USER, ""))
    request = TakeSeat(
        PROTOCOL, kernel_id[:MAX_NAME], sendable(label[:LABEL_LENGTH]), user[:MAX_NAME]
    )
    try:
        reply = ask_for(address, request, SeatTaken)
    except BrokerUnreachable:
        if not address.may_be_private:
            raise
        privatebroker.start(address, timeout_s=timeout_s, environ=environ)
        reply = ask_for(address, request, SeatTaken)
    return Seat(address, reply.ticket)


def leave(seat: Seat, *, restart: bool = False, timeout_s: float = 2.0) -> None:
    """Give the seat up; with `restart` keep it and drop its tensors. Raises as `ask` does."""
    ask(seat.address, LeaveSeat(seat.ticket, restart), timeout_s)
