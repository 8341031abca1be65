"""Attention, by the kernel that the executor's device would take, called by name."""

__all__: list[str] = []
