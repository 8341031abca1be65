"""Who connects, by which door, and how many they may be."""

__all__: list[str] = []
