"""Ops recorded, and done, without Python: a small library in C++, where it was built.

Torch's way into Python costs more than most ops do. In a kernel the library takes the commonest
calls before they go there, and leaves all others to `jgpu.device.recording`, whose results are its
own. In an executor it does the ops of known programs, for which `programs.running.compile` writes
functions otherwise. Without it everything works, and a small step takes about twice as long.

`source` has it; `building` makes it for this environment's torch (`jgpu accelerate`), `loading`
finds it.
"""

__all__: list[str] = []
