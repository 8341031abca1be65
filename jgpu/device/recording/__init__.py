"""From an op that torch calls to an entry of the log."""

__all__: list[str] = []
