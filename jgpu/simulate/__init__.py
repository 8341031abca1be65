"""The kinds of `jgpu simulate`, one module each; what they share is `report` and `chart`."""

__all__: list[str] = []
