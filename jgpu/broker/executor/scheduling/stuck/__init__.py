"""Works that cannot go on where they are: too large, short of memory, behind one that is stuck."""

__all__: list[str] = []
