"""What is looked at before it may run: definitions, probes, refusals."""

__all__: list[str] = []
