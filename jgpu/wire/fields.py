"""What fields of messages and reports are made of: text, names, counts and their limits."""

from typing import Annotated, TypeAlias

import msgspec

from jgpu.wire import limits

__all__ = ["Ids", "Name", "Natural", "Text", "sendable"]

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=limits.MAX_TEXT)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=limits.MAX_NAME)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
Ids: TypeAlias = Annotated[tuple[Natural, ...], msgspec.Meta(max_length=limits.MAX_SLOTS)]


def sendable(text: str) -> str:
    """Text of an environment or a command line, fit for a message: what is no UTF-8 is "?"."""
    return text.encode(errors="replace").decode()
