"""What can be wrong with a ledger, and what a setting's row is; known without SQLAlchemy."""

from typing import NamedTuple

__all__ = ["LedgerBroken", "LedgerProblem", "SettingKey", "StoredSetting"]


class SettingKey(NamedTuple):
    """Which row of the ledger: a field may be set for good, and until a moment above that."""

    #: the scope's
    kind: str
    name: str
    field: str
    timed: bool = False


class StoredSetting(NamedTuple):
    """What was set live, as people write it, and the moment until which it counts, 0 for good."""

    text: str
    until: float = 0.0


class LedgerProblem(Exception):
    """The ledger cannot be used just now; the text says why."""


class LedgerBroken(LedgerProblem):
    """The ledger's file was no ledger; it was moved aside, and a new one can be begun."""
