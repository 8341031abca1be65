"""The view "Now"."""

__all__: list[str] = []
