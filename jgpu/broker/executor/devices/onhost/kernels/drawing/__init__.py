"""Ops that draw random numbers, each from the seed and the offset of its launch."""

__all__: list[str] = []
