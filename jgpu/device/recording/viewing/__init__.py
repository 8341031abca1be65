"""Views: what shows a buffer otherwise, with nothing recorded."""

__all__: list[str] = []
