"""What both ends of a connection share: messages, framing, the program form, the arena.

Nothing here imports torch or any part of jgpu but its errors.
"""

__all__: list[str] = []
