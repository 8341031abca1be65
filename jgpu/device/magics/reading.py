"""What objects hold, read past all that they and their classes may say of themselves.

Runs no code of the notebook's. What another thread changes meanwhile is read again.
"""

import types
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

__all__ = [
    "MOST_MEMBERS",
    "attributes_of",
    "dictionary_of",
    "following_of",
    "has_member",
    "items_of",
    "members_of",
    "module_of",
    "sequence_of",
]

#: members of one container that are looked at
MOST_MEMBERS: Final = 200_000
#: what a class says of itself, past what its metaclass may say
module_of: Final = type.__dict__["__module__"].__get__
_mro_of: Final = type.__dict__["__mro__"].__get__
_namespace_of: Final = type.__dict__["__dict__"].__get__


def sequence_of(kind: type) -> Any:
    """The class that knows the members, whatever a class of people's says that they are."""
    return next(
        (each for each in (list, tuple, set, frozenset, deque) if issubclass(kind, each)), None
    )


def following_of(kind: type) -> Any:
    """What tells the nodes behind a node of a graph, where this is the class of one."""
    for each in _mro_of(kind):
        member = _namespace_of(each).get("next_functions")
        if member is not None:
            return member if isinstance(member, types.GetSetDescriptorType) else None
    return None


def has_member(kind: type, prefix: str) -> bool:
    """Whether objects of a class have a member that the class names so."""
    return any(
        str.startswith(name, prefix) for each in _mro_of(kind) for name in _namespace_of(each)
    )


def attributes_of(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What an object has in its dictionary and its slots, each by its name behind the object's."""
    for key, each in items_of(dictionary_of(value)):
        yield f"{name}.{key}", each
    for kind in _mro_of(type(value))[:-1]:
        members = _namespace_of(kind)
        slots = members.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            member = members.get(slot)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield f"{name}.{slot}", member.__get__(value)
                except AttributeError:
                    continue


def dictionary_of(value: Any) -> dict[str, Any]:
    """An object's own attributes, whatever it says that they are."""
    for kind in _mro_of(type(value)):
        member = _namespace_of(kind).get("__dict__")
        if isinstance(member, types.GetSetDescriptorType | types.MemberDescriptorType):
            found = member.__get__(value)
            return dict(found) if isinstance(found, types.MappingProxyType) else found or {}
        if member is not None:
            break
    return {}


def items_of(mapping: Any) -> list[tuple[Any, Any]]:
    """The entries, as they are while another thread may change them."""
    if not isinstance(mapping, dict):
        mapping = dict(mapping)
    return members_of(dict.items(mapping))


def members_of(values: Any, iterate: Callable[[Any], Iterator[Any]] = iter) -> list[Any]:
    """What a container holds, as it is while another thread may change it."""
    for _ in range(4):
        try:
            return list(islice(iterate(values), MOST_MEMBERS))
        except RuntimeError:  # it was changed meanwhile
            continue
    return []
