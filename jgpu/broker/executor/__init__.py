"""The process that owns a device: sessions' streams, their programs, memory and lanes.

What runs next is decided by `jgpu.sched`; `pump` is the one thread that carries it out.
"""

__all__: list[str] = []
