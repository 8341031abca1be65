"""From a decoded program to a plan that can do no harm."""

__all__: list[str] = []
