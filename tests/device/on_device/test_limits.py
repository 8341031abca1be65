"""No program ends its session by a limit of the protocol: the client splits, or refuses in place.

`REACHED` names every limit of `jgpu.wire.limits` and every bounded field of the messages that a
client sends, each with a program that exceeds it, or with the reason why none can.
"""

import typing
from contextlib import nullcontext

import msgspec
import pytest
import torch
from torch import nn

from jgpu.device import current
from jgpu.wire import limits
from jgpu.wire import messages as m
from jgpu.wire.program import Program

#: what counts or numbers things, and ends only after 10^9 or 10^18 of them
_COUNTERS = {1 << 62, 1 << 31}


def bounded(kind, found):
    """Names of the bounded fields of a message, and of all that it is made of."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if isinstance(getattr(kind, name, None), property) or name not in kind.__struct_fields__:
            continue
        _look(f"{kind.__name__}.{name}", hint, found)
    return found


def _look(name, hint, found):
    for meta in getattr(hint, "__metadata__", ()):
        bounds = {meta.max_length, meta.le, meta.lt} - {None}
        if isinstance(meta, msgspec.Meta) and meta.min_length is None and bounds - _COUNTERS:
            found[name] = bounds
    hint = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    is_struct = isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    if is_struct and not any(each.startswith(f"{hint.__name__}.") for each in found):
        bounded(hint, found)
    for inner in typing.get_args(hint):
        _look(name, inner, found)


def fields():
    """All bounded fields that a client fills in."""
    found = {}
    for kind in (*typing.get_args(m.ClientMessage), Program):
        bounded(kind, found)
    return {*found, "Loop.left"}  # of the counters the one that a notebook's line decides


# -- programs ----------------------------------------------------------------------------------


def frees_many():
    x = torch.ones((), device="cuda")
    many = [x + 1 for _ in range(limits.MAX_SLOTS + 10)]
    assert many[-1].item() == 2.0
    many.clear()
    assert (x + 2).item() == 3.0


def copies_much():
    data = torch.arange(limits.ARENA_BYTES // 8 + 1000, dtype=torch.int64)
    assert torch.equal(data.to("cuda").cpu(), data)


def copies_more_than_a_frame_holds():
    for count in (limits.INLINE_BYTES, limits.INLINE_BYTES + 1, limits.MAX_FRAME_BYTES + 1):
        data = torch.arange(count).to(torch.uint8)
        assert torch.equal(data.to("cuda").cpu(), data)


def indexes_by_a_large_host_tensor():
    x = torch.arange(20_000, device="cuda")
    index = torch.arange(10_000) * 2  # more bytes than fit into a program
    assert torch.equal(x[index].cpu(), index)
    mask = torch.arange(20_000) % 2 == 0
    assert torch.equal(x[mask].cpu(), index)


def sets_a_state_of_any_size():
    for count in (0, 7, limits.INLINE_BYTES + 1):
        with pytest.raises(RuntimeError, match=r"size"):
            torch.Generator(device="cuda").set_state(torch.zeros(count, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"size"):
        torch.cuda.set_rng_state(torch.zeros(limits.INLINE_BYTES + 1, dtype=torch.uint8))


def seeds_with_large_numbers():
    for seed in (-(1 << 63), (1 << 64) - 1):
        torch.Generator(device="cuda").manual_seed(seed)
    for seed in (-(1 << 63) - 1, 1 << 64):
        with pytest.raises((ValueError, RuntimeError), match=r"Overflow"):
            torch.Generator(device="cuda").manual_seed(seed)


def makes_many_dimensions():
    x = torch.ones([1] * limits.MAX_DIMS, device="cuda")
    with pytest.raises(RuntimeError, match=r"dim"):
        x.unsqueeze(0)
    with pytest.raises(RuntimeError, match=r"dim"):
        torch.ones([1] * (limits.MAX_DIMS + 1)).to("cuda")


def makes_large_sizes_and_strides():
    x = torch.ones(2, device="cuda")
    assert (x.as_strided((1,), (limits.MAX_SIZE,), 0) + 1).tolist() == [2.0]
    assert (torch.empty(0, 1 << 61, device="cuda") + 1).shape == (0, 1 << 61)
    with pytest.raises(RuntimeError):
        torch.empty(limits.MAX_SIZE, dtype=torch.uint8, device="cuda")
    with pytest.raises((RuntimeError, TypeError)):
        torch.empty(1 << 63, device="cuda")
    assert x.expand(1 << 20, 2)[-1, -1].item() == 1.0


def calls_a_deep_recurrent_net():
    # a device with a library for such nets reports how it packs their weights
    asked = current.session.device_facts().has_cuda_kernels
    with pytest.raises(RuntimeError, match="recurrent nets") if asked else nullcontext():
        net = nn.RNN(1, 1, 300, device="cuda")
        assert net(torch.ones(1, 1, 1, device="cuda"))[0].shape == (1, 1, 1)


def reads_many_numbers():
    x = torch.ones(40, device="cuda")
    for _ in range(4):
        made = [x[k] + k for k in range(40)]
        assert [each.item() for each in made] == [1.0 + k for k in range(40)]


def records_many_ops_before_it_waits():
    x = torch.zeros(1, device="cuda")
    for _ in range(limits.MAX_OPS + 100):
        x.add_(1)
    assert x.item() == limits.MAX_OPS + 100


def loops_for_ever():
    w = nn.Parameter(torch.ones(1, device="cuda"))
    optimizer = torch.optim.SGD([w], 0.1)
    current.session.progress.loops.forget()
    for k in range(1 << 70):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
        if k == 3:
            break
    assert w.item() < 1.0


_LISTS = "long lists and many slots are split where they are recorded: test_long_lists"
_WORDS = "a word of torch's own; others are refused where they are given"
_FEW = "torch has fewer of them"
_OF_EXECUTOR = "the executor sends it, and cuts it"
_OF_CONTROL = "of the broker's own commands, not of a session"

REACHED = {
    # of `jgpu.wire.limits`
    "ARENA_BYTES": copies_much,
    "INLINE_BYTES": copies_more_than_a_frame_holds,
    "LEAST_STEP_S": _OF_CONTROL,
    "MAX_BUFFERS": "a program meets it in test_largest, where it is small",
    "MAX_DIMS": makes_many_dimensions,
    "MAX_EVENTS": _OF_CONTROL,
    "MAX_FRAME_BYTES": copies_more_than_a_frame_holds,
    "MAX_GENERATORS": "a program meets it in test_rng, where it is small",
    "MAX_GEOMETRIES": _LISTS,
    "MAX_GROUPS": _OF_CONTROL,
    "MAX_LAYERS": calls_a_deep_recurrent_net,
    "MAX_LIST": _LISTS,
    "MAX_NAME": _WORDS,
    "MAX_OPS": records_many_ops_before_it_waits,
    "MAX_REFUSED": _OF_CONTROL,
    "MAX_SIZE": makes_large_sizes_and_strides,
    "MAX_SLOTS": frees_many,
    "MAX_TEXT": _OF_EXECUTOR,
    "MAX_WANTED": reads_many_numbers,
    "MAX_WEIGHTS": calls_a_deep_recurrent_net,
    "MAX_WIDTH": "the weights of such a layer take more than any device has; refused in recurrent",
    "OLDEST_PROTOCOL": "no limit",
    "PROTOCOL": "no limit",
    "REPORT_AGE_S": _OF_CONTROL,
    "WANTED_BYTES": reads_many_numbers,
    # of messages
    "CellStarted.label": "the number of a cell",
    "ChooseAttention.allowed": _FEW,
    "ChooseAttention.preferred": _FEW,
    "Define.program": _LISTS,
    "Dtype.name": _WORDS,
    "Flags.attention": _FEW,
    "Flags.attention_order": _FEW,
    "Flags.carveout": "set by torch, which takes no other number",
    "Flags.blas": _WORDS,
    "Flags.default_dtype": _WORDS,
    "Flags.depthwise": _WORDS,
    "Flags.float32": _FEW,
    "Flags.linalg": _WORDS,
    "Flags.matmul_precision": _WORDS,
    "Free.buffers": frees_many,
    "Geometry.bits": "two switches of a tensor",
    "Geometry.dtype": _WORDS,
    "Geometry.shape": makes_many_dimensions,
    "Geometry.stride": makes_large_sizes_and_strides,
    "HostScalar.dtype": _WORDS,
    "HostTensor.data": indexes_by_a_large_host_tensor,
    "HostTensor.dtype": _WORDS,
    "HostTensor.shape": makes_many_dimensions,
    "LayOutWeights.each": "weights of one layer, which a mode and two switches decide",
    "LayOutWeights.layers": calls_a_deep_recurrent_net,
    "LayOutWeights.mode": _FEW,
    "LayOutWeights.weights": calls_a_deep_recurrent_net,
    "Layout.name": _WORDS,
    "Loop.left": loops_for_ever,
    "MemoryFormat.name": _WORDS,
    "Op.args": "no op of torch takes so many; others are recorded by what they call",
    "Op.kwargs": "no op of torch takes so many; others are recorded by what they call",
    "Op.name": "names of torch's own ops; others are recorded by what they call",
    "Op.outs": _LISTS,
    "Program.geometries": _LISTS,
    "Program.ops": records_many_ops_before_it_waits,
    "Program.params": _LISTS,
    "Program.views": _LISTS,
    "ReportProgress.ops": "the client says one number",
    "Run.dead": _LISTS,
    "Run.free": frees_many,
    "Run.inputs": _LISTS,
    "Run.live": _LISTS,
    "Run.params": _LISTS,
    "Run.wanted": reads_many_numbers,
    "Seed.value": seeds_with_large_numbers,
    "SetRng.state": sets_a_state_of_any_size,
    "Tag.buffers": "split, as test_client_outbox shows with so many",
    "Tag.kind": "one of two",
    "Upload.data": copies_more_than_a_frame_holds,
}


def test_each_limit_is_known_here_with_the_program_that_reaches_it():
    assert set(REACHED) == {*limits.__all__, *fields()}


@pytest.mark.parametrize(
    "program",
    dict.fromkeys(each for each in REACHED.values() if callable(each)),
    ids=lambda each: each.__name__,
)
def test_a_program_past_a_limit_of_the_protocol_keeps_its_session(program):
    kept = torch.arange(5, device="cuda")
    assert kept.sum().item() == 10
    session = current.session.connection.number
    program()
    assert kept.tolist() == [0, 1, 2, 3, 4]
    assert current.session.connection.number == session
