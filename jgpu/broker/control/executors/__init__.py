"""Executor processes: started, watched, ended, and who ended them."""

__all__: list[str] = []
