"""Composite ops that branch on the device: lowered as the executor's device would."""

__all__ = ["install"]


def install() -> None:
    """Register the lowerings."""
