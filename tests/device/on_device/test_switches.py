"""What was recorded runs under the switches that its line had, whatever is set afterwards."""

import pytest
import torch
from striking import Struck, striking
from torch.nn.attention import SDPBackend, sdpa_kernel

from jgpu.device import current, flags
from jgpu.wire.program import decode_program


def last_flags():
    return decode_program(current.session.outbox.runs[-1][1].compiled.data).flags


def settings():
    """Each way of setting a switch: how, how back, and the field of the wire with its value."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    high = torch.set_float32_matmul_precision
    strict = torch.use_deterministic_algorithms
    library = torch.backends.cuda.preferred_blas_library
    return {
        "a property": (lambda: setattr(cudnn, "deterministic", True), "cudnn_deterministic",
                       True),
        "a function": (lambda: strict(True), "deterministic", True),
        "a precision": (lambda: high("high"), "matmul_precision", "high"),
        "a module": (lambda: setattr(matmul, "allow_fp16_accumulation", True),
                     "fp16_accumulation", True),
        "a default": (lambda: torch.set_default_dtype(torch.float64), "default_dtype", "float64"),
        "the newer interface": (lambda: setattr(cudnn.conv, "fp32_precision", "ieee"),
                                "cudnn_tf32", False),
        "a library": (lambda: library("cublaslt"), "blas", "cublaslt"),
        "torch's own": (lambda: torch._C._set_mkldnn_enabled(False), "mkldnn_enabled", False),
    }  # fmt: skip


@pytest.fixture
def as_before():
    before = torch.get_default_dtype()
    yield
    torch.backends.cudnn.deterministic = False
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_fp16_accumulation = False
    torch.set_default_dtype(before)
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.preferred_blas_library("default")
    torch._C._set_mkldnn_enabled(True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("way", list(settings()))
def test_an_op_runs_under_the_switches_of_its_line(way):
    switch, field, value = settings()[way]
    before = getattr(flags.current(), field)
    assert before != value
    x = torch.ones(3, device="cuda")
    y = x + 1
    switch()
    assert not current.session.log.entries, "what was recorded waits no longer"
    assert getattr(last_flags(), field) == before
    z = y + 1
    assert z.tolist() == [3.0] * 3
    assert getattr(last_flags(), field) == value


@pytest.mark.usefixtures("as_before")
def test_a_switch_that_stays_as_it_is_cuts_nothing():
    torch.backends.cudnn.deterministic = False
    x = torch.ones(3, device="cuda") + 1
    recorded = len(current.session.log.entries)
    torch.backends.cudnn.deterministic = False
    torch.use_deterministic_algorithms(False)
    assert len(current.session.log.entries) == recorded > 0
    del x


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_a_switch_for_some_lines_alone_is_theirs_alone():
    x = torch.ones(3, device="cuda")
    with torch.backends.mkldnn.flags(enabled=False):
        y = x * 2
    assert last_flags().mkldnn_enabled is False
    assert (y + 1).tolist() == [3.0] * 3
    assert last_flags().mkldnn_enabled is True


@pytest.mark.usefixtures("as_before")
def test_a_handler_that_raises_leaves_a_switch_and_what_was_recorded_before_it_as_they_belong():
    """Either it is not set, and the op waits, or the op is on its way under what there was."""
    x = torch.zeros(3, device="cuda")
    # not the session's own, which gives its lock back where Python runs no handlers
    watched = ("device/hooks/switches.py", "device/client/outbox.py", "device/client/link.py")
    at, counts, held = 1, {True: 0, False: 0}, current.session._lock._is_owned()
    while True:
        torch._C._set_cudnn_deterministic(False)
        torch.cuda.synchronize()
        y, was_struck = x + at, False
        with striking(at, watched) as counted:
            try:
                torch._C._set_cudnn_deterministic(True)
            except Struck:
                was_struck = True
        is_set = torch._C._get_cudnn_deterministic()
        assert current.session._lock._is_owned() is held
        assert bool(current.session.log.entries) is not is_set, at
        assert not is_set or last_flags().cudnn_deterministic is False
        assert flags.current().cudnn_deterministic is is_set
        assert y.tolist() == [float(at)] * 3
        if counted[0] < at:
            break
        assert was_struck
        counts[is_set] += 1
        at += 1
    assert min(counts.values()) > 5


def test_an_unknown_library_is_torchs_own_error():
    with pytest.raises(RuntimeError, match="Unknown input value"):
        torch.backends.cuda.preferred_blas_library("atlas")
    assert torch.backends.cuda.preferred_linalg_library() is not None


@pytest.mark.usefixtures("as_before")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("read", [flags.read_all, flags.read_in_python])
def test_switches_are_read_alike_and_are_the_same_until_one_changes(read):
    seen = read(flags._CALLS, ())
    assert seen == tuple(function(*given) for function, given in flags._CALLS)
    assert read(flags._CALLS, seen) is seen
    assert read(flags._CALLS, seen[:-1]) == seen
    changes = 0
    for switch, *_ in settings().values():
        switch()
        now = read(flags._CALLS, seen)
        expected = tuple(function(*given) for function, given in flags._CALLS)
        assert (now, now is seen) == (expected, expected == seen)
        changes += now is not seen
        seen = now
    assert changes == len(settings()) - 1  # libraries are kept beside them


def test_what_a_getter_raises_is_raised():
    def getter():
        raise RuntimeError("mine")

    for read in (flags.read_all, flags.read_in_python):
        with pytest.raises(RuntimeError, match="mine"):
            read(((getter, ()),), ())


def test_an_order_of_attention_kernels_is_sent_only_while_one_is_set():
    first = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    assert flags.attention_order() == ()
    with sdpa_kernel(first, set_priority=True):
        assert flags.attention_order()[:2] == tuple(map(int, first))
    assert flags.attention_order() == ()
