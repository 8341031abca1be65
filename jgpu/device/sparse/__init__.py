"""Sparse tensors, made of dense ones on the device."""

__all__: list[str] = []
