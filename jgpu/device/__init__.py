"""The shared device inside a notebook's process: torch records, the broker computes.

Loaded by torch itself through `autoload`, which is next to nothing in a process without a seat.
"""

__all__: list[str] = []
