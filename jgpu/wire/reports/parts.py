"""What brokers tell as JSON, and how readers of any version take it.

Fields are added, never renamed or removed; each new one has a default. So a reader of any age reads
what a broker of any age tells: it passes over what it does not know, and takes the default for what
is not there.
"""

from typing import TypeVar

import msgspec

from jgpu.errors import ProtocolError

__all__ = ["ReportPart", "decode_json"]

_Kind = TypeVar("_Kind")


class ReportPart(msgspec.Struct, frozen=True):
    """Base of all parts: an object with the names of its fields."""


def decode_json(data: bytes, kind: type[_Kind], what: str, where: object) -> _Kind:
    """Read `what` the broker at `where` told; raises `ProtocolError` for what is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"The {what} of the broker at {where} cannot be read ({error}). Have the same version "
            "of jgpu here and there."
        ) from None
