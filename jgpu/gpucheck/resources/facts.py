"""What this environment's torch sees of the GPU, and what of CUDA it can use.

    python facts.py HOW

Facts by name; what cannot be found out is the error's sentence.
"""

import importlib.util
import inspect
import json
from collections.abc import Callable
from typing import Any

import torch

_C: Any = getattr(torch._C, "_CudaStreamBase", None)


def _compiled() -> bool:
    """A kernel compiled at run time (NVRTC) does what it says."""
    source = 'extern "C" __global__ void twice(float* x, int n) {int i = threadIdx.x; if (i < n) x[i] *= 2;}'  # noqa: E501
    kernel = torch.cuda._compile_kernel(source, "twice")
    x = torch.ones(32, device="cuda")
    kernel((1, 1, 1), (32, 1, 1), (x, 32))
    return bool((x == 2).all().item())


def _parts() -> dict[str, str]:
    """Private and beta parts of torch that may serve one day, by their signatures."""
    names: dict[str, Callable[[], Any]] = {
        "MemPool": lambda: torch.cuda.MemPool,
        "graph": lambda: torch.cuda.graphs.CUDAGraph.capture_begin,
        "GreenContext": lambda: torch.cuda.green_contexts.GreenContext.create,
    }
    found = {}
    for name, part in names.items():
        try:
            found[name] = str(inspect.signature(part()))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _waits_are_seen() -> bool:
    """Torch notices an op that makes the host wait."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.ones(3, device="cuda").nonzero()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


FACTS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.__version__,
    "CUDA of the build": lambda: torch.version.cuda,
    "cuDNN": torch.backends.cudnn.version,
    "name": lambda: torch.cuda.get_device_name(0),
    "capability": lambda: list(torch.cuda.get_device_capability(0)),
    "code for": torch.cuda.get_arch_list,
    "uuid": lambda: str(torch.cuda.get_device_properties(0).uuid),
    "processors": lambda: torch.cuda.get_device_properties(0).multi_processor_count,
    "devices": torch.cuda.device_count,
    "free and total": lambda: list(torch.cuda.mem_get_info(0)),
    "computes": lambda: torch.ones(3, device="cuda").sum().item(),
    "allocator": torch.cuda.get_allocator_backend,
    "allocator's settings": lambda: torch.cuda.memory._snapshot().get("allocator_settings"),
    "compiles at run time": _compiled,
    "triton": lambda: importlib.util.find_spec("triton") is not None,
    "waits are seen": _waits_are_seen,
    "parts": _parts,
    "least priority of streams": lambda: _C.priority_range(),
}


def main() -> dict[str, Any]:
    """Each for itself."""
    found = {}
    for name, ask in FACTS.items():
        try:
            found[name] = ask()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:500]
    return found


if __name__ == "__main__":
    print(json.dumps(main(), default=str))
