"""What fields of messages and reports are made of: text, names, counts and their limits."""

from typing import Annotated, TypeAlias

import msgspec

from jgpu.wire import limits

__all__ = ["Ids", "Name", "Natural", "Text"]

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=limits.MAX_TEXT)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=limits.MAX_NAME)]
Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
Ids: TypeAlias = Annotated[tuple[Natural, ...], msgspec.Meta(max_length=limits.MAX_SLOTS)]
