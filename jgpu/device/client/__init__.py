"""The session with the broker: what is sent, awaited, kept and lost."""

__all__: list[str] = []
