"""What a scheduler shows of itself: snapshots, counts, and recordings that can be played again."""

__all__: list[str] = []
