"""Lanes: who is in which, how large they are, and how one is given up."""

__all__: list[str] = []
