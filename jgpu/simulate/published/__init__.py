"""Workloads of published papers, run again."""

__all__: list[str] = []
