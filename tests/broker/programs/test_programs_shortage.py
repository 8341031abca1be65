"""Whatever torch says where memory lacks: the op waits for memory and goes on; then it is done."""

import pytest
import torch
from faulty import replace_op
from sketch import Sketch, buffers, context, contiguous

from jgpu.broker.executor.programs.asking.probe import Prober
from jgpu.broker.executor.programs.running.interpret import Walker
from jgpu.broker.executor.programs.running.shortage import (
    CERTAIN,
    PERHAPS,
    is_certain,
    is_out_of_memory,
)

SQUARE = contiguous(4, 4)
ACCELERATOR = getattr(torch, "AcceleratorError", RuntimeError)
CALL = "when calling `{}`"

#: what torch raises, whole, as it writes it
SAID = [
    (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"),
    (RuntimeError, "[enforce fail at alloc_cpu.cpp:125] err == 0. DefaultCPUAllocator: can't "
     "allocate memory: you tried to allocate 4 bytes. Error code 12 (Cannot allocate memory)"),
    (MemoryError, "std::bad_alloc"),
    (ACCELERATOR, "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported "
     "at some other API call, so the stacktrace below might be incorrect."),
    (RuntimeError, "CUDA driver error: out of memory"),
    (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED " + CALL.format("cublasCreate(handle)")),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    (RuntimeError, "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    (RuntimeError, "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, "
     + CALL.format("cusolverDnCreate(handle)")),
    (RuntimeError, "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED "
     + CALL.format("cusparseCreate(handle)")),
    (RuntimeError, "cuFFT error: CUFFT_ALLOC_FAILED"),
    (RuntimeError, "CURAND_STATUS_ALLOCATION_FAILED"),
    (RuntimeError, "CUDA NVRTC error: NVRTC_ERROR_OUT_OF_MEMORY"),
]  # fmt: skip
#: what may be that, or anything else
DOUBTFUL = [
    "GET was unable to find an engine to execute this computation",
    "FIND was unable to find an engine to execute this computation",
    "Unable to find a valid cuDNN algorithm to run convolution",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED " + CALL.format("cublasCreate(handle)"),
    "cusolver error: CUSOLVER_STATUS_NOT_INITIALIZED, " + CALL.format("cusolverDnCreate(handle)"),
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
]
#: what is neither, though it sounds like it
OTHERS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: too many resources requested for launch"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED " + CALL.format("cublasSgemm(...)")),
    ValueError("CUDA error: out of memory"),
]


def product():
    """x += 1; y = x @ x."""
    sketch = Sketch(inputs=1)
    sketch.op("add_.Scalar", sketch.seen(0, SQUARE), 1, outs=[None])
    sketch.op("mm.default", sketch.seen(0, SQUARE), sketch.seen(0, SQUARE), outs=[SQUARE])
    return sketch.define()


def run(definition, given):
    return definition.run(given, (), b"\x01", b"", context())


def fail(monkeypatch, definition, error, times, *, compiled=False):
    """The product raises that error so many times."""
    left = iter([error] * times)

    def raising(call):
        def again(*args, **kwargs):
            raised = next(left, None)
            if raised is not None:
                raise raised
            return call(*args, **kwargs)

        return again

    step = definition.plan.steps[1]
    if not compiled:
        call = Walker._call
        failing = raising(call)
        monkeypatch.setattr(
            Walker,
            "_call",
            lambda self, at, *rest: (failing if at is step else call)(self, at, *rest),
        )
        return
    replace_op(monkeypatch, definition, 1, raising)


EVERY = [kind(text) for kind, text in SAID] + [RuntimeError(text) for text in DOUBTFUL]


def name_of(error):
    return str(error)[:60]


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("error", EVERY, ids=name_of)
def test_an_op_that_a_library_had_no_memory_for_goes_on_when_there_is_some(
    monkeypatch, error, compiled
):
    definition, x = product(), torch.rand(4, 4)
    if compiled:
        for _ in range(2):
            run(definition, buffers(x))
    fail(monkeypatch, definition, error, 1, compiled=compiled)
    given = buffers(x)
    outcome = run(definition, given)
    assert outcome.suspended.op == 1
    outcome = definition.resume(outcome.suspended, context())
    assert outcome.failures == []
    assert torch.equal(outcome.outputs[0], (x + 1) @ (x + 1))  # and nothing was done twice
    assert torch.equal(given[0].base, x + 1)


@pytest.mark.parametrize("error", EVERY, ids=name_of)
def test_where_nobody_has_more_the_op_fails_by_what_it_was(monkeypatch, error):
    definition = product()
    fail(monkeypatch, definition, error, 9)
    outcome = run(definition, buffers(torch.rand(4, 4)))
    outcome = definition.abandon(outcome.suspended, context())
    (failure,) = outcome.failures
    wanted = "OutOfMemoryError" if is_certain(error) else "RuntimeError"
    assert (failure.op, failure.error, failure.text) == (1, wanted, str(error))


@pytest.mark.parametrize("error", OTHERS, ids=name_of)
def test_other_errors_are_the_ops_own_at_once(monkeypatch, error):
    definition = product()
    fail(monkeypatch, definition, error, 1)
    outcome = run(definition, buffers(torch.rand(4, 4)))
    assert outcome.suspended is None
    (failure,) = outcome.failures
    assert (failure.error, failure.text) == (type(error).__name__, str(error))
    assert not is_out_of_memory(error)


def test_every_text_of_the_table_is_tried_here():
    texts = [text for _, text in SAID]
    assert all(any(part in text for text in texts) for part in CERTAIN)
    assert all(any(part in text for text in DOUBTFUL) for part in PERHAPS)
    assert not any(is_certain(RuntimeError(text)) for text in DOUBTFUL)


@pytest.mark.parametrize("error", EVERY, ids=name_of)
def test_no_answer_that_was_given_for_want_of_memory_is_kept(error):
    prober = Prober("cpu")
    prober.remember(b"question", "", ((), (type(error).__name__, str(error))))
    assert prober.known(b"question", "") is None
