"""`/metrics` for Prometheus."""

__all__: list[str] = []
