"""Ops on the device's tensors without Python: a small library in C++, where it was built.

Torch's way into Python costs more than most ops do. The library takes the commonest calls before
they go there, and leaves all others to `jgpu.device.recording`, whose results are its own: without
it everything works, and a small step takes about twice as long. `source` has it; `building` makes
it for this environment's torch (`jgpu accelerate`), `loading` finds it.
"""

__all__: list[str] = []
