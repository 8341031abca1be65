"""Ops that torch makes of others: taken apart as the executor's device would."""

__all__: list[str] = []
