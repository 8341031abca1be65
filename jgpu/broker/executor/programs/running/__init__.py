"""A plan being run: compiled, or step by step."""

__all__: list[str] = []
