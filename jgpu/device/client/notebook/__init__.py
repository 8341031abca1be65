"""What the session knows of its notebook: loops, values that are read, tensors, waits."""

__all__: list[str] = []
