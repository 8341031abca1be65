"""What the broker says of itself: status, records, drains, to whoever may see it."""

__all__: list[str] = []
