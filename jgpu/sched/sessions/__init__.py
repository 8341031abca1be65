"""Users, sessions and works: plain state with its invariants beside it; nothing here decides."""

__all__: list[str] = []
