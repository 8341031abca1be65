"""What native torch refuses or warns of, refused and warned of on the same line."""

__all__: list[str] = []
