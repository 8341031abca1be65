"""Asking the device itself what an op returns or would choose."""

__all__: list[str] = []
