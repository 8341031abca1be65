"""What the device would choose by itself, and the contracts of what is then called."""

from contextlib import suppress

import msgspec
import pytest
import torch
from sketch import contiguous

from jgpu.broker.executor.devices.onhost.eager import Eagerly
from jgpu.broker.executor.programs import Chooser, choice_of
from jgpu.broker.executor.programs.asking.choices import _First, _Outline, _switched, _Taken
from jgpu.broker.executor.programs.checking.arguments import bind, refs_of
from jgpu.broker.executor.programs.checking.check import check_op
from jgpu.broker.executor.programs.checking.ops import resolve
from jgpu.broker.executor.programs.flags import gate
from jgpu.errors import ProgramError
from jgpu.wire.messages import ChooseAttention, ChooseNorm, LayOutWeights
from jgpu.wire.program import DeviceArgument, Dtype, Flags, Op, Slot

MATH, FLASH, EFFICIENT, CUDNN = range(4)
ORDER = (FLASH, EFFICIENT, MATH, CUDNN)


def heads(dtype="float16"):
    return contiguous(2, 3, 5, 8, dtype=dtype)


def asked(dtype="float16", mask=None, allowed=(MATH, FLASH, EFFICIENT, CUDNN), preferred=ORDER):
    return ChooseAttention(
        *(1, heads(dtype), heads(dtype), heads(dtype), mask, 0.0, False, None, False),
        *((False,) * 4, allowed, preferred),
    )


@pytest.mark.parametrize(
    ("question", "kernel"),
    [
        (asked(), FLASH),
        (asked(mask=contiguous(5, 5)), EFFICIENT),
        (asked("float32"), EFFICIENT),
        (asked("float64"), MATH),
        (asked(allowed=(MATH, CUDNN)), MATH),
        (asked(preferred=(CUDNN, FLASH, EFFICIENT, MATH)), CUDNN),
        (asked(preferred=()), FLASH),
    ],
)
def test_without_a_device_the_first_kernel_that_takes_such_tensors_is_chosen(question, kernel):
    assert Chooser("null").ask(question) == (kernel,)


def test_where_no_kernel_is_left_torchs_own_error_is_raised():
    with pytest.raises(RuntimeError, match="No available kernel"):
        Chooser("null").ask(asked("float64", allowed=(FLASH,)))


@pytest.mark.parametrize("question", [asked(), None])
def test_a_cpu_has_no_such_choice(question):
    with pytest.raises(ProgramError):
        Chooser("cpu").ask(question or weights())


def test_answers_are_kept_by_what_was_asked_and_in_bounds():
    chooser = Chooser("null", most=2)
    for dtype in ("float16", "float32", "float64"):
        key = choice_of(asked(dtype))
        assert key == choice_of(msgspec.structs.replace(asked(dtype), request=7))
        assert chooser.known(key, "user1") is None
        chooser.remember(key, "user1", chooser.ask(asked(dtype)))
        assert chooser.known(key, "user1") == chooser.ask(asked(dtype))
    assert len(chooser) == 2
    assert len({choice_of(asked(d)) for d in ("float16", "float32")} | {choice_of(weights())}) == 3


def switches():
    return torch.backends.cuda.flash_sdp_enabled(), torch._C._get_sdp_priority_order()


def test_others_run_under_torchs_own_switches_again():
    before = switches()
    Chooser("null").ask(asked(allowed=(MATH,), preferred=(CUDNN, EFFICIENT, FLASH, MATH, 4)))
    with gate.passing(Flags()):
        assert switches() == before


@pytest.mark.parametrize("preferred", [(CUDNN, EFFICIENT, FLASH, MATH, 4), (FLASH, MATH), ()])
def test_nobody_passes_who_has_other_switches_while_a_kernel_is_chosen(preferred):
    found = []

    class Watched(Chooser):
        def _outline(self, geometry, wanted):
            others = asked(allowed=(MATH, FLASH), preferred=preferred)
            found.append((switches()[0], *map(gate.is_open_to, (Flags(), _switched(others)))))
            return super()._outline(geometry, wanted)

    chooser = Watched("cuda-on-host", around=Eagerly)
    assert chooser.ask(asked(allowed=(MATH, EFFICIENT), preferred=preferred)) == (EFFICIENT,)
    assert found == [(False, False, False)] * 3


# -- batch norm ------------------------------------------------------------------------------


def norm(dtype="float32", weight="float32", shape=(4, 3, 5, 5), training=True, known=True, **flags):
    channels = contiguous(3, dtype=weight) if weight else None
    statistics = channels if known else None
    return ChooseNorm(
        *(1, contiguous(*shape, dtype=dtype), channels, channels, statistics, statistics),
        *(training, 1e-5, Flags(**flags)),
    )


@pytest.mark.parametrize(
    ("question", "by_cudnn"),
    [
        (norm(), 1),
        (norm("float16"), 1),
        (norm("float16", "float16"), 0),
        (norm("bfloat16"), 0),
        (norm(shape=(4, 3)), 0),
        (norm(weight=None), 0),
        (norm(known=False), 1),
        (norm(known=False, training=False), 0),
        (norm(cudnn_enabled=False), 0),
    ],
)
def test_without_a_device_batch_norms_are_cudnns_where_torch_may_take_it(question, by_cudnn):
    assert Chooser("null").ask(question) == (by_cudnn,)


def test_a_cpu_has_no_choice_of_batch_norms():
    with pytest.raises(ProgramError):
        Chooser("cpu").ask(norm())


@pytest.mark.parametrize("taken", [True, False])
def test_the_device_is_asked_by_torchs_own_composite(taken):
    """Here the composite takes torch's kernel, which is what is waited for in cuDNN's place."""
    kernels = torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default
    first = _First(kernels[0] if taken else kernels[1])
    place = torch.device("cpu")
    tensors = [_Outline.of(g, place) for g in (contiguous(4, 3, 5, 5), *[contiguous(3)] * 4)]
    with suppress(_Taken, NotImplementedError), torch.no_grad(), first:
        torch.ops.aten._batch_norm_impl_index.default(*tensors, True, 0.1, 1e-5, True)
    assert first.taken is taken


# -- recurrent layers ------------------------------------------------------------------------

LAYER = [contiguous(24, 4), contiguous(24, 6), contiguous(24), contiguous(24)]


def weights(layer=LAYER, each=4, projection=0, flags=Flags()):  # noqa: B008 - frozen
    return LayOutWeights(1, tuple(layer), each, 4, 2, 6, projection, 1, False, flags)


def test_weights_lie_one_behind_another_and_biases_have_their_place():
    assert Chooser("null").ask(weights()) == (288, 0, 96, 240, 264)
    assert Chooser("null").ask(weights(LAYER[:2], each=2)) == (288, 0, 96)


def test_without_cudnn_nothing_is_packed():
    assert Chooser("null").ask(weights(flags=Flags(cudnn_enabled=False))) == ()
    whole = [msgspec.structs.replace(g, dtype="int32") for g in LAYER]
    assert Chooser("null").ask(weights(whole)) == ()


def test_weights_beyond_the_scratch_memory_are_not_packed():
    assert Chooser("null", most_bytes=288 * 4 - 1).ask(weights()) == ()


def test_too_few_weights_or_of_several_types_are_refused():
    mixed = [*LAYER[:3], contiguous(24, dtype="float64")]
    for question in (weights([]), weights(LAYER[:3]), weights(mixed)):
        with pytest.raises(ProgramError):
            Chooser("null").ask(question)


#: input, four weights, the buffer, hx, cx, and for the backward output, gradients and reserve
TENSORS = {
    "input": contiguous(5, 3, 4),
    **dict(zip(("wi", "wh", "bi", "bh"), LAYER, strict=True)),
    "buffer": contiguous(288),
    "hx": contiguous(1, 3, 6),
    "cx": contiguous(1, 3, 6),
    "output": contiguous(5, 3, 6),
    "grad_output": contiguous(5, 3, 6),
    "grad_hy": contiguous(1, 3, 6),
    "grad_cy": contiguous(1, 3, 6),
    "reserve": contiguous(64, dtype="uint8"),
}
NUMBERS = {
    "mode": 2,
    "hidden": 6,
    "projection": 0,
    "layers": 1,
    "batch_first": False,
    "dropout": 0.0,
    "train": True,
    "both": False,
    "sizes": (),
}


def check(tensors=TENSORS, numbers=NUMBERS, *, backward=False, each=4):
    """Hold one call to its contract, as a program's is."""
    names = list(tensors)
    slot = {name: Slot(k, k) for k, name in enumerate(names) if tensors[name] is not None}
    of = {name: slot.get(name) for name in names}
    layers = tuple(of[name] for name in ("wi", "wh", "bi", "bh"))
    first = (of["input"], layers, each, of["buffer"], of["hx"], of["cx"])
    gradients = tuple(of[name] for name in ("output", "grad_output", "grad_hy", "grad_cy"))
    last = (None, of["reserve"], (True,) * 4) if backward else (None,)
    args = (*first, *(gradients if backward else ()), *numbers.values(), *last)
    name = "aten::_cudnn_rnn_backward.default" if backward else "aten::_cudnn_rnn.default"
    op = Op(name, args, {}, ())
    info = resolve(name, "null")
    bound = bind(op, info, torch.device("meta"))
    given = [tensors[names[ref.view]] for ref in refs_of(bound)]
    return check_op(op, info, bound, [(geometry, 1 << 20) for geometry in given])


@pytest.mark.parametrize("backward", [False, True])
def test_what_a_layer_is_fed_natively_passes(backward):
    returned = check(backward=backward).returns
    shapes = [None if r is None else r.geometry.shape for r in returned]
    states = [(1, 3, 6), (1, 3, 6)]
    first = [(5, 3, 4), *states, *(g.shape for g in LAYER)]
    assert shapes == (first if backward else [(5, 3, 6), *states, (0,), (288,)])


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", list(TENSORS))
def test_a_tensor_that_is_smaller_or_of_another_type_is_refused(name, backward):
    if name in ("output", "grad_output", "grad_hy", "grad_cy", "reserve") and not backward:
        return
    whole = TENSORS[name]
    smaller = contiguous(*whole.shape[:-1], whole.shape[-1] - 1, dtype=whole.dtype)
    other = msgspec.structs.replace(whole, dtype="float64")
    wrong = [other] if name == "reserve" else [smaller, other]
    for geometry in wrong:
        with pytest.raises(ProgramError):
            check({**TENSORS, name: geometry}, backward=backward)


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": 3},
        {"mode": 4},
        {"mode": -1},
        {"hidden": 7},
        {"hidden": -6},
        {"projection": 2},
        {"layers": 2},
        {"layers": 0},
        {"both": True},
        {"batch_first": True},
        {"sizes": (3, 2)},
        {"dropout": 2.0},
    ],
    ids=str,
)
def test_numbers_that_do_not_fit_the_tensors_are_refused(changed):
    for backward in (False, True):
        with pytest.raises(ProgramError):
            check(numbers={**NUMBERS, **changed}, backward=backward)


def test_packed_sequences_have_sizes_that_fall_and_add_up():
    tensors = {**TENSORS, "input": contiguous(6, 4)}
    check(tensors, {**NUMBERS, "sizes": (3, 2, 1)})
    for sizes in ((2, 3, 1), (3, 3, 1), (3, 3, 0), (4, 2), (3, 4, -1)):
        with pytest.raises(ProgramError):
            check(tensors, {**NUMBERS, "sizes": sizes})


@pytest.mark.parametrize("name", ["buffer", "hx", "reserve", "output"])
def test_a_tensor_with_holes_is_refused(name):
    whole = TENSORS[name]
    holes = msgspec.structs.replace(whole, stride=tuple(2 * step for step in whole.stride))
    with pytest.raises(ProgramError):
        check({**TENSORS, name: holes}, backward=True)


def test_a_backward_without_gradients_or_of_an_evaluation_is_refused():
    none = dict.fromkeys(("grad_output", "grad_hy", "grad_cy"))
    with pytest.raises(ProgramError):
        check({**TENSORS, **none}, backward=True)
    with pytest.raises(ProgramError):
        check(numbers={**NUMBERS, "train": False}, backward=True)


@pytest.mark.parametrize(("dropout", "dtype"), [(1.5, "uint8"), (0.5, "float32")])
def test_a_state_of_dropout_is_of_bytes_for_a_probability(dropout, dtype):
    info = resolve("aten::_cudnn_init_dropout_state.default", "null")
    kwargs = {"dtype": Dtype(dtype)}
    with pytest.raises(ProgramError):
        check_state(info, (dropout, True, 1), kwargs)
    check_state(info, (0.5, True, 1), {"dtype": Dtype("uint8")})


def check_state(info, args, kwargs):
    op = Op(info.name, args, {**kwargs, "device": DeviceArgument()}, ())
    check_op(op, info, bind(op, info, torch.device("meta")), [])


def test_what_kernels_write_unsaid_counts_as_written():
    for base, name in (("_cudnn_rnn", "dropout_state"), ("_cudnn_rnn_backward", "reserve")):
        info = resolve(f"aten::{base}.default", "null")
        assert [a.name for a in info.arguments if a.written] == [name]
