"""The view "People"."""

__all__: list[str] = []
