"""Torch's switches: read in one process, set in another, whichever interface had them.

Both ends are of one version of torch, so one process stands for both here.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jgpu.broker.executor.programs import attention_switches
from jgpu.broker.executor.programs import flags as executor
from jgpu.device import flags as kernel
from jgpu.errors import ProgramError
from jgpu.wire.switches import ATTENTION, FLOAT32, Flags

C = torch._C
PRECISIONS = ("none", "ieee", "tf32", "bf16")
BOOLEAN = st.booleans()


WHOLE = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"))


def reset():
    """As an executor is before the first program; it never sets what is for all ops."""
    for place in WHOLE:
        C._set_fp32_precision_setter(*place, "none")
    executor._apply(Flags())


@pytest.fixture(autouse=True)
def as_before():
    reset()
    yield
    reset()


def setting(name, *values):
    """A call of torch's setter of this name, which this version may lack."""
    setter = getattr(C, name, None)
    return st.tuples(st.just(setter), *values) if setter is not None else st.nothing()


PLACES = st.sampled_from([*WHOLE, *FLOAT32])
#: every switch by every interface; what is refused is left out as it is natively
SETTINGS = st.one_of(
    setting("_set_deterministic_algorithms", BOOLEAN),
    setting("_set_float32_matmul_precision", st.sampled_from(["highest", "high", "medium"])),
    setting("_set_cublas_allow_tf32", BOOLEAN),
    setting("_set_cudnn_allow_tf32", BOOLEAN),
    PLACES.flatmap(
        lambda place: st.tuples(
            st.just(lambda word, place=place: C._set_fp32_precision_setter(*place, word)),
            st.sampled_from(PRECISIONS),
        )
    ),
    setting("_set_cudnn_enabled", BOOLEAN),
    setting("_set_cudnn_deterministic", BOOLEAN),
    setting("_set_cudnn_depthwise_kernel", st.sampled_from(["auto", "cudnn", "native"])),
    setting("_set_cublas_allow_fp16_reduced_precision_reduction", BOOLEAN, BOOLEAN),
    setting("_set_cublas_allow_bf16_reduced_precision_reduction", BOOLEAN, BOOLEAN),
    setting("_set_cublas_allow_fp16_accumulation", BOOLEAN),
    setting("_set_mkldnn_enabled", BOOLEAN),
    setting("_set_mkldnn_deterministic", BOOLEAN),
    setting("_set_nnpack_enabled", BOOLEAN),
    setting("_set_default_dtype", st.sampled_from([torch.float32, torch.float64])),
)


def set_all(changes):
    for setter, *values in changes:
        try:
            setter(*values)
        except (RuntimeError, TypeError):
            continue


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SETTINGS, max_size=8), st.lists(SETTINGS, max_size=8))
def test_what_a_notebook_set_by_any_interface_is_read_and_set_alike(mine, anothers):
    reset()
    set_all(mine)
    read = kernel.current()
    executor.check_flags(read)
    reset()
    set_all(anothers)
    before = kernel.current()
    reset()
    executor._apply(before)
    executor._apply(read)
    assert kernel.current() == read


def test_no_program_changes_cudnns_plan_cache_or_cublas_workspace_for_others(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = dict(os.environ)
    executor._apply(Flags(deterministic=True, cudnn_benchmark=True))
    assert dict(os.environ) == before
    assert not torch.backends.cudnn.benchmark


@pytest.mark.filterwarnings("ignore")
def test_mixed_interfaces_raise_when_torch_reads_them_and_not_here():
    C._set_fp32_precision_setter("cuda", "matmul", "tf32")
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    read = kernel.current()
    assert read.float32[FLOAT32.index(("cuda", "matmul"))] == "tf32"
    assert (read.matmul_tf32, read.matmul_precision) == (True, "high")
    executor._apply(Flags())
    executor._apply(read)
    assert torch.get_float32_matmul_precision() == "high"  # there neither


def test_what_an_older_client_says_is_set_as_ever():
    executor._apply(Flags(matmul_precision="high", matmul_tf32=True, cudnn_tf32=False))
    assert kernel.current().float32[:3] == ("tf32", "none", "none")
    executor._apply(Flags(matmul_precision="high", matmul_tf32=False))
    assert kernel.current().matmul_tf32 is False
    executor._apply(Flags(matmul_tf32=True))
    assert kernel.current().matmul_tf32 is True


def test_what_a_newer_client_set_is_gone_where_an_older_one_does_not_speak_of_it():
    executor._apply(Flags())
    plain = kernel.current()
    executor._apply(Flags(float32=("tf32", "tf32", "ieee", "bf16", "bf16", "tf32")))
    executor._apply(Flags())
    assert kernel.current() == plain


def test_attentions_switches_are_set_with_their_order():
    allowed = 1 << ATTENTION.index("math") | 1 << ATTENTION.index("cudnn")
    executor._apply(Flags(attention=allowed, attention_order=(3, 2, 1, 0, 4)))
    read = kernel.attention()
    assert read["attention"] == allowed
    assert read["attention_order"] == (3, 2, 1, 0, 4)
    executor._apply(Flags())
    assert kernel.attention() == {
        name: getattr(Flags(), name)
        for name in ("attention", "attention_order", "attention_reduces")
    }


@pytest.fixture
def cudnn_first(monkeypatch):
    """A GPU on which the first choice of a kernel in a process puts cuDNN first, as on an H200."""
    order = (3, 1, 2, 0, 4)
    choices = []

    def choose():
        if not choices:
            torch._C._set_sdp_priority_order(list(order))
        choices.append(order)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(attention_switches, "_choose_a_kernel", choose)
    monkeypatch.setattr(attention_switches._GpuOrder, "order", ())
    yield order
    monkeypatch.undo()
    executor._apply(Flags())


def test_programs_without_an_order_get_that_of_the_gpu_each_time(cudnn_first):
    read = []
    for flags in (Flags(), Flags(attention_order=(2, 1, 0, 3, 4)), Flags()):
        executor._apply(flags)
        read.append(tuple(torch._C._get_sdp_priority_order()))
    assert read == [cudnn_first, (2, 1, 0, 3, 4), cudnn_first]


def test_the_first_order_that_a_program_asks_for_is_kept_on_every_gpu(cudnn_first):
    executor._apply(Flags(attention_order=(2, 1, 0, 3, 4)))
    attention_switches._choose_a_kernel()
    assert torch._C._get_sdp_priority_order() == [2, 1, 0, 3, 4]


@pytest.mark.parametrize(
    "flags",
    [
        Flags(matmul_precision="lowest"),
        Flags(default_dtype="int8"),
        Flags(blas="atlas"),
        Flags(linalg="lapack"),
        Flags(depthwise="sometimes"),
        Flags(float32=("none",)),
        Flags(float32=("none", "none", "none", "none", "none", "fp8")),
        Flags(float32=("bf16", "none", "none", "none", "none", "none")),
        Flags(fp16_split_k=False),
        Flags(attention_order=(0, 0, 1, 2, 3)),
        Flags(attention_order=(0, 1)),
    ],
    ids=str,
)
def test_what_torch_does_not_know_is_refused_before_it_is_set(flags):
    with pytest.raises(ProgramError):
        executor.check_flags(flags)
