"""The cases, by what they are about. Each is a function of a `Stand`, listed in the catalogue."""

__all__: list[str] = []
