"""What users have beyond what they may: told to whoever lowers a quota, for nothing is taken away.

A quota below what is in use counts for what comes on top. This says so, by user and by how much.
"""

from collections.abc import Collection
from dataclasses import dataclass

from jgpu.broker.control.quotas.spec import PRIORITIES, Quota
from jgpu.wire.sizes import short_size

__all__ = ["InUse", "excess"]


@dataclass(frozen=True, slots=True)
class InUse:
    """What a user has at this moment."""

    #: bytes of all their sessions, on the device or moved to the host, and of models among them
    memory: int
    resident: int
    #: the classes of their sessions, as places in `PRIORITIES`
    priorities: tuple[int, ...]


def excess(user: str, quota: Quota, found: InUse, fields: Collection[str]) -> list[str]:
    """A sentence for each of these fields of which a user has more than they may."""
    said = []
    if "memory" in fields and quota.memory and found.memory > quota.memory:
        over = short_size(found.memory - quota.memory)
        said.append(
            f"{user} holds {short_size(found.memory)}, {over} more than the "
            f"{short_size(quota.memory)} that {user} may have now. What is there can be read, "
            "written and saved; more is given once it is less."
        )
    if "resident" in fields and quota.resident and found.resident > quota.resident:
        over = short_size(found.resident - quota.resident)
        said.append(
            f"The models and optimizers of {user} hold {short_size(found.resident)}, {over} more "
            f"than the {short_size(quota.resident)} that they may hold now. What is there can be "
            "read, written and saved; more is given once it is less."
        )
    count = len(found.priorities)
    if "sessions" in fields and quota.sessions and count > quota.sessions:
        said.append(
            f"{user} has {count} sessions, {count - quota.sessions} more than {user} may have now. "
            "They go on; another one begins once there are fewer."
        )
    best = PRIORITIES.index(quota.priority)
    urgent = sum(each < best for each in found.priorities)
    if "priority" in fields and urgent:
        said.append(
            f"{user} has {urgent} of {count} sessions in a class more urgent than "
            f"{quota.priority}. They keep it to their end."
        )
    return said
