"""What the kernel remembers answers for no call, tensor or time that it was not made for."""

import io
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from jgpu.device import flags
from jgpu.device.recording.ops import info_of
from jgpu.device.recording.viewing.stretches import known


def outcome(call, device):
    """What a call gives, as plain data, or its error."""
    try:
        found = call(device)
    except Exception as error:
        return type(error), str(error).partition(", but got")[0]
    found = found if isinstance(found, list | tuple) else [found]
    return [
        (str(each.dtype), each.stride(), each.cpu().tolist())
        if isinstance(each, torch.Tensor)
        else each
        for each in found
    ]


def check(call):
    assert outcome(call, "cuda") == outcome(call, "cpu")


HALVES = torch.arange(12, dtype=torch.float16)
FLOATS = torch.arange(12.0)


@pytest.mark.parametrize("start", [1, 0, 2, 3, 4])
@pytest.mark.parametrize(
    "view",
    [
        lambda d, k: HALVES.to(d)[k : k + 4].view(torch.float32),
        lambda d, k: HALVES.to(d)[k : k + 4].view(torch.float64),
        lambda d, k: HALVES.to(d)[k : k + 4].view(torch.int8),
        lambda d, k: torch.view_as_complex(FLOATS.to(d)[k : k + 4].view(2, 2)),
        lambda d, k: FLOATS.to(d)[k : k + 4].view(torch.complex64),
        lambda d, k: torch.view_as_real(FLOATS.to(d).view(torch.complex64)[k % 3 :]),
        lambda d, k: FLOATS.to(d).view(torch.complex64)[k % 3 :].imag,
        lambda d, k: FLOATS.to(d)[k : k + 4].split([1, 3]),
    ],
)
def test_a_view_is_not_shown_from_where_another_of_its_geometry_began(view, start):
    for at in (0, start, 0):
        check(lambda device, at=at: view(device, at))


ENDS = (-9, -4, -3, -1, 0, 1, 2, 3, 4, 9)
SOURCES = (
    lambda d: torch.arange(24.0, device=d).view(4, 3, 2),
    lambda d: torch.arange(48.0, device=d).view(4, 6, 2)[:, 1:4].transpose(0, 1),
    lambda d: torch.arange(3, device=d).expand(4, 3),
    lambda d: torch.arange(24.0, device=d).view(4, 3, 2)[2:, 1:],
    lambda d: torch.zeros(3, 0, 4, device=d),
    lambda d: torch.tensor(1.0, device=d),
    lambda d: torch.arange(8.0, device=d).view(torch.complex64).conj(),
    lambda d: torch.arange(8.0, device=d).view(torch.complex64).conj().imag,
)


def stretches(tensor):
    """Where each begins, how it lies, what it holds; or what torch says of it."""
    calls = [
        *(partial(torch.select, tensor, dim, at) for dim in (0, 1, -1, 3) for at in ENDS),
        *(partial(torch.narrow, tensor, 0, at, 2) for at in ENDS),
        *(lambda a=a, b=b: tensor[a:b] for a in (None, *ENDS) for b in (None, *ENDS)),
        *(lambda a=a, b=b: tensor[..., a:b] for a in ENDS for b in ENDS),
        lambda: tensor[::2],
    ]
    found = []
    for call in calls:
        try:
            made = call()
        except (IndexError, RuntimeError) as error:
            found.append((type(error), str(error)))
            continue
        at = made.storage_offset(), made.shape, made.stride(), made.is_conj(), made.is_neg()
        found.append((at, made._base is not None, made.is_inference()))
    return found


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_rows_and_slices_begin_where_native_ones_do_whatever_was_seen_before(source, mode):
    theirs, ours = source("cpu"), source("cuda")
    with mode():
        wanted = stretches(theirs)
        for _ in range(3):
            assert stretches(ours) == wanted


def test_what_is_written_through_a_row_shows_in_its_base_and_in_gradients():
    def call(device):
        base = torch.arange(12.0, device=device).view(4, 3)
        before = base._version
        for row in (base[1], base[-2], base[3:][0]):
            row.mul_(10)
        weight = torch.ones(4, 3, device=device, requires_grad=True)
        rows = [weight[i] * (i + 1) for i in (2, 0, -1)]
        torch.stack([*rows, weight[1:3][1]]).square().sum().backward()
        return [base, base._version - before, weight.grad]

    for _ in range(3):
        check(call)


def test_rows_and_slices_of_a_large_dataset_leave_one_entry_each():
    x = torch.zeros(500, 7, device="cuda")
    for at in range(500):
        x[at], x[at : at + 1]
    lengths = {key[3:] for key in known if key[1] is x._g}
    assert sorted(lengths) == [(), (1,)]


def saved(tensor):
    file = io.BytesIO()
    torch.save({"x": tensor, "again": tensor[1:]}, file)
    file.seek(0)
    return torch.load(file)


def test_what_is_saved_is_what_there_is_now_whoever_holds_an_older_copy():
    """A pickler that failed is kept by its traceback, and with it what it had read."""

    def call(device):
        x, found = torch.arange(3.0, device=device), []
        held = []
        for _ in range(3):
            held.append(x.__reduce_ex__(2))
            found += [t.clone() for t in saved(x).values()]
            x.add_(1)
        return found

    check(call)


def test_tensors_that_share_memory_share_it_in_the_file():
    def call(device):
        found = saved(torch.arange(3.0, device=device))
        found["x"][1] = 9
        return list(found.values())

    check(call)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_plan_answers_for_other_numbers_places_and_defaults(device):
    """Numbers, offsets, buffers and the default dtype are not in a plan's key."""
    whole = torch.arange(12, device=device)
    for number in (2, 3, 2.5, -0.0, 2):
        for start in (0, 4, 2, 0):
            found = torch.add(whole[start : start + 4].float(), 1.0, alpha=number)
            assert found.tolist() == [start + k + number for k in range(4)]
            assert (whole[start : start + 4] * number).dtype == torch.result_type(whole, number)
    for dtype in (torch.float64, torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            assert (whole / 2).dtype == torch.sin(whole).dtype == dtype
            assert (whole / 2).tolist() == [k / 2 for k in range(12)]
        finally:
            torch.set_default_dtype(torch.float32)


matmul = torch.backends.cuda.matmul
#: field of the wire: how to set the switch, and its values
SWITCHES = {
    "deterministic": (torch.use_deterministic_algorithms, (True, False)),
    "matmul_precision": (torch.set_float32_matmul_precision, ("high", "medium", "highest")),
    "cudnn_enabled": (lambda v: setattr(torch.backends.cudnn, "enabled", v), (False, True)),
    "cudnn_deterministic": (
        lambda v: setattr(torch.backends.cudnn, "deterministic", v),
        (True, False),
    ),
    "cudnn_tf32": (lambda v: setattr(torch.backends.cudnn, "allow_tf32", v), (False, True)),
    "matmul_tf32": (lambda v: setattr(matmul, "allow_tf32", v), (True, False)),
    "fp16_reduced_precision": (
        lambda v: setattr(matmul, "allow_fp16_reduced_precision_reduction", v),
        (False, True),
    ),
    "bf16_reduced_precision": (
        lambda v: setattr(matmul, "allow_bf16_reduced_precision_reduction", v),
        (False, True),
    ),
    "mkldnn_enabled": (torch._C._set_mkldnn_enabled, (False, True)),
}


@pytest.mark.parametrize("field", SWITCHES)
def test_every_switch_of_torch_is_seen_when_it_changes(field):
    switch, values = SWITCHES[field]
    for value in values * 2:
        switch(value)
        assert getattr(flags.current(), field) == value


def test_a_tensor_that_changes_its_shape_changes_no_other_of_its_geometry():
    one, other = torch.ones(2, 6, device="cuda"), torch.ones(2, 6, device="cuda")
    (one + 1).sum().item()
    one.transpose_(0, 1)
    one.resize_(3, 3)
    one.resize_(0)
    torch.add(torch.ones(4, device="cuda"), 1, out=one)
    assert (other + 1).shape == other.transpose(0, 1).t().shape == (2, 6)
    assert other._g.meta().shape == (2, 6)
    assert torch.equal(other.cpu(), torch.ones(2, 6))


def test_an_op_that_is_defined_anew_is_another_op():
    found = []
    for factor in (2.0, 3.0):

        @torch.library.custom_op("jgpu_cached::scaled", mutates_args=())
        def scaled(x: torch.Tensor, factor: float = factor) -> torch.Tensor:
            return x * factor

        op = torch.ops.jgpu_cached.scaled.default
        assert info_of(op).func is op
        found.append(scaled(torch.ones(2, device="cuda")).tolist())
    assert found == [[2.0, 2.0], [3.0, 3.0]]


def test_a_cast_is_not_kept_past_its_context_or_for_another_type():
    weight = nn.Parameter(torch.full((2, 2), 1.0, device="cuda"))
    x = torch.ones(1, 2, device="cuda")
    for number, dtype in ((1.0, torch.bfloat16), (3.0, torch.float16), (5.0, torch.bfloat16)):
        with torch.no_grad():
            weight.fill_(number)
        with torch.autocast("cuda", dtype):
            found = x @ weight
            with torch.no_grad():
                assert (x @ weight).grad_fn is None
            assert (x @ weight).grad_fn is not None
        assert found.dtype == dtype
        assert found.tolist() == [[2 * number, 2 * number]]


def test_stand_ins_of_one_call_stand_for_nothing_in_the_next():
    """Dropout runs on stand-ins; the tensors of each call are new ones, often at old addresses."""
    drop = nn.Dropout(0.5)
    for k in range(1, 30):
        kept = drop(torch.full((64,), float(k), device="cuda")).unique().tolist()
        assert set(kept) <= {0.0, 2.0 * k}
