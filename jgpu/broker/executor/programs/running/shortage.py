"""Which errors say that memory was short, whoever's memory it was.

Torch's own allocators raise a type. Libraries that allocate for themselves (a handle, a workspace,
a compiled kernel) have their status in the text of a RuntimeError, and some say only that they
found no way to do it: whether memory lacked is then seen by trying again when there is more. If the
op fails all the same where nobody has more to give, its own error is what is told.

The texts are as torch writes them; of each the part that no version words otherwise.
"""

from typing import Final

import torch

__all__ = [
    "CERTAIN",
    "PERHAPS",
    "is_certain",
    "is_out_of_memory",
    "is_text_of_shortage",
    "yield_to",
]

#: Part of the text, and what of torch writes it.
CERTAIN: Final = {
    "DefaultCPUAllocator: ": "c10/core/impl/alloc_cpu.cpp: can't allocate, or not enough, memory",
    "CUDA out of memory. ": "c10/cuda/CUDACachingAllocator.cpp, where it lost its type on the way",
    "CUDA error: out of memory": "c10/cuda/CUDAException.cpp: cudaErrorMemoryAllocation",
    "CUDA driver error: out of memory": "c10/cuda/driver_api.h: CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED": "ATen/cuda/Exceptions.h, TORCH_CUDABLAS_CHECK",
    "CUSPARSE_STATUS_ALLOC_FAILED": "ATen/cuda/CUDASparseBlas.cpp, TORCH_CUDASPARSE_CHECK",
    "CUSOLVER_STATUS_ALLOC_FAILED": "ATen/cuda/Exceptions.h, TORCH_CUSOLVER_CHECK",
    "CUFFT_ALLOC_FAILED": "ATen/native/cuda/CuFFTUtils.h, CUFFT_CHECK",
    "CURAND_STATUS_ALLOCATION_FAILED": "cuRAND, by its name",
    "CUDNN_STATUS_ALLOC_FAILED": "ATen/cudnn/Exceptions.h, AT_CUDNN_CHECK",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": "the same, of cuDNN 9",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED": "the same, of cuDNN 9",
    "NVRTC_ERROR_OUT_OF_MEMORY": "ATen/cuda/Exceptions.h, AT_CUDA_NVRTC_CHECK",
}
#: Texts that a want of memory may be behind, or something else.
PERHAPS: Final = {
    "was unable to find an engine to execute this computation": (
        "ATen/native/cudnn/Conv_v8.cpp: GET or FIND, after each engine failed, as for its workspace"
    ),
    "Unable to find a valid cuDNN algorithm to run convolution": (
        "ATen/native/cudnn/Conv_v7.cpp: no algorithm is left whose workspace can be had"
    ),
    "CUBLAS_STATUS_NOT_INITIALIZED": "cublasCreate: also where its own memory cannot be had",
    "CUSOLVER_STATUS_NOT_INITIALIZED": "cusolverDnCreate, likewise",
    "CUDNN_STATUS_NOT_INITIALIZED": "cudnnCreate, likewise",
}


def is_certain(error: BaseException) -> bool:
    """Whether an allocator, of whatever device or library, had no more."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _says(str(error), CERTAIN)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an op may be tried again when there is more memory."""
    may_be = isinstance(error, RuntimeError) and _says(str(error), PERHAPS)
    return may_be or is_certain(error)


def is_text_of_shortage(error: str, text: str) -> bool:
    """The same of an error by its type's name and its text: such an answer is of that moment."""
    named = error in ("OutOfMemoryError", "MemoryError")
    return named or _says(text, CERTAIN) or _says(text, PERHAPS)


def yield_to(error: BaseException, device: torch.device) -> None:
    """Give a library what torch's allocator keeps for later: libraries ask the driver alone.

    It may wait for the device, and is for the moment in which nothing else helps.
    """
    if device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()


def _says(text: str, parts: dict[str, str]) -> bool:
    return any(part in text for part in parts)
