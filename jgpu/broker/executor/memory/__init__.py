"""Who may have how many bytes, which buffers there are, and what is spilled."""

__all__: list[str] = []
