"""A CUDA without a GPU, for tests: the calls of the `cuda` device, computed on the host.

Streams run out of order by seed, dropped memory is overwritten and used again at once, and a
kernel that asserts breaks the device for good: so a wait that is missing, an early drop or an
unguarded index shows as it would on a GPU, in a different number or an executor's end. Ops are
computed by the CPU's kernels, and by host versions of those that only CUDA has (`kernels`).

What it does not show: a GPU's speed, its rounding, and races within a kernel.
"""

__all__: list[str] = []
