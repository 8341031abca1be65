"""Small programs as students write them, natively and shared (`jgpu bench programs`)."""

__all__: list[str] = []
