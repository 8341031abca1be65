"""What measurements of sharing are made with: notebooks, lanes, goals."""

__all__: list[str] = []
