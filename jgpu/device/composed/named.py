"""Every op that the device names by hand, with the reason: for `jgpu bench fidelity` and tests.

What no schema and no dispatcher tells has to be named; this list of the lists keeps it in sight. It
counts names, not the patterns of `wire.vocabulary`, which refuse whole families.
"""

from collections.abc import Collection

from jgpu.device.composed import autocast, branches, composites
from jgpu.device.recording import answers, ops
from jgpu.device.recording.viewing import views

__all__ = ["by_hand"]


def by_hand() -> dict[str, Collection[str]]:
    """Names by reason."""
    return {
        "copies between host and device": ops.COPIES,
        "sizes of results depend on data: one round trip": ops.DATA_DEPENDENT,
        "answered in the kernel (facts of wrappers, sizes from host tensors)": answers.ANSWERS,
        "meta kernels that differ from the device's own": ops.PROBED,
        "the same for permuted inputs": ops.PROBED_PERMUTED,
        "the same for half precision": ops.PROBED_HALF,
        "views that rebind or show bits: resize_, set_, conj": views.HANDLERS,
        "alias their input without saying so": ops.SILENT_VIEWS,
        "composites that branch on the kind of device": composites.LOWERED,
        "composites that have another way on CUDA": branches.BRANCHES,
        "composites that go another way for tensors of a subclass": composites.FOR_SUBCLASSES,
        "composites that CUDA's and the CPU's torch have kernels for": ops.WITH_OWN_KERNELS,
        "kernels that ask for the grad mode": ops.ASK_GRAD_MODE,
        "kernels of CUDA that choose among attention's": ops.CHOOSE_KERNEL,
        "take index tensors of the host": ops.HOST_ARGUMENTS,
        "leave what they write conjugated": ops.CONJUGATE_OUT,
        "refused": ops.REFUSALS,
        "autocast: the casts of CUDA's list": autocast.NAMED,
    }
