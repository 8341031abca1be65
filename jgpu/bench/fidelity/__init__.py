"""PyTorch's own test databases, natively and on the shared device (`jgpu bench fidelity`)."""

__all__: list[str] = []
