"""What `jgpu demo` is made of: a broker of its own, lessons in real kernels, a table, evidence."""

__all__: list[str] = []
