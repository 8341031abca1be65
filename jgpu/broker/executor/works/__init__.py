"""What runs in order, in a lane, when its turn comes: programs, transfers, and how they end."""

__all__: list[str] = []
