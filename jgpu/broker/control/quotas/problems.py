"""What can be wrong with a ledger, and the name of a setting's row; known without SQLAlchemy."""

__all__ = ["LedgerBroken", "LedgerProblem", "SettingKey"]

#: scope's kind, scope's name, field
SettingKey = tuple[str, str, str]


class LedgerProblem(Exception):
    """The ledger cannot be used just now; the text says why."""


class LedgerBroken(LedgerProblem):
    """The ledger's file was no ledger; it was moved aside, and a new one can be begun."""
