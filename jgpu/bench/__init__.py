"""Parts of `jgpu bench`: what is measured in a process with a seat, and what is made of it."""

__all__: list[str] = []
