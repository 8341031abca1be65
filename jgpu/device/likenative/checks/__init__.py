"""Checks that native kernels make on the host before or after they run, made on the same line."""

__all__: list[str] = []
