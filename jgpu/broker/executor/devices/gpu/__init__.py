"""The parts of the `cuda` device: its lanes, its copies through pinned memory, what it tells."""

__all__: list[str] = []
