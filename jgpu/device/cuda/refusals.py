"""What a shared device cannot be: refused with a sentence. And what it need not do: nothing."""

from typing import Any

from jgpu.device.errors import refused

__all__ = ["REPLACED", "refused_class"]


def refused_class(name: str, what: str, instead: str) -> Any:
    """A class, for `isinstance` (torch's compiler asks) and annotations, that cannot be made."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        raise refused(what, instead)

    return type(name, (), {"__new__": __new__, "__doc__": f"Refused: {instead}."})


def _call(what: str, instead: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refused(what, instead)

    return refuse


def _making(what: str, instead: str) -> Any:
    """Natively it is the call of what is made that needs the device; many make and never call."""

    def make(*args: Any, **kwargs: Any) -> Any:
        return _call(what, instead)

    return make


class _NoMarks:
    """NVTX without a profiler that would listen."""

    def rangePushA(self, message: str) -> int:  # noqa: N802 - NVTX's names
        return 0

    def rangePop(self) -> int:  # noqa: N802
        return 0

    def rangeStartA(self, message: str) -> int:  # noqa: N802
        return 0

    def rangeEnd(self, range_id: int) -> None:  # noqa: N802
        return None

    def markA(self, message: str) -> None:  # noqa: N802
        return None

    def deviceRangeStart(self, *args: Any) -> object:  # noqa: N802
        return object()

    def deviceRangeEnd(self, *args: Any) -> None:  # noqa: N802
        return None


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


_GRAPHS = ("CUDA graphs", "leave them out: the device makes its own of what repeats")
_RUNTIME = ("the CUDA runtime in a kernel", "leave the call out; the device belongs to the broker")

REPLACED: dict[str, dict[str, Any]] = {
    "": {
        "cudart": _call(*_RUNTIME),
        "current_blas_handle": _call(*_RUNTIME),
        "current_solver_handle": _call(*_RUNTIME),
        "get_stream_from_external": _call("streams of other libraries", "use torch.cuda.Stream()"),
        "_sleep": _nothing,
        "GreenContext": refused_class("GreenContext", "green contexts", "leave them out"),
        "_compile_kernel": _call("kernels of one's own", "use PyTorch's ops"),
    },
    "graphs": {
        "CUDAGraph": refused_class("CUDAGraph", *_GRAPHS),
        "graph": refused_class("graph", *_GRAPHS),
        "graph_pool_handle": _call(*_GRAPHS),
        "make_graphed_callables": _call(*_GRAPHS),
        "is_current_stream_capturing": _no,
    },
    "nvtx": {"_nvtx": _NoMarks()},
    "profiler": {"init": _nothing, "start": _nothing, "stop": _nothing},
    "jiterator": {
        "_create_jit_fn": _making("kernels of one's own", "use PyTorch's ops"),
        "_create_multi_output_jit_fn": _making("kernels of one's own", "use PyTorch's ops"),
    },
}
