"""Parts of `jgpu bench` that measure sharing: a real broker, and real processes that train."""

__all__: list[str] = []
