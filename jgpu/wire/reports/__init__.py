"""What brokers tell of themselves as JSON, and how it is followed."""

__all__: list[str] = []
