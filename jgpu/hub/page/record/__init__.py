"""The views "Usage" and "Events"."""

__all__: list[str] = []
