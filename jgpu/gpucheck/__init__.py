"""Does jgpu work on the GPU of this host? What is to be found out on the first day with one.

`make test-gpu` runs all cases, `jgpu doctor --gpu` those of its first three minutes. Each case is a
process with a broker of its own, so that a crash, a hang or a broken device ends that case alone.
The cases' own code is tried without a GPU on the device `cuda-on-host`.

Does not cover whether jgpu fits the torch of an environment (`jgpu.selfcheck`).
"""

__all__: list[str] = []
