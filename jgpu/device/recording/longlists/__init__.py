"""Ops on more tensors than one instruction of a program may take."""

__all__: list[str] = []
