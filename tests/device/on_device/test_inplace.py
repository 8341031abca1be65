"""In-place ops never change the geometry of what they write: all of torch's, natively and here."""

import warnings

import pytest
import torch

from jgpu.device.likenative.checks import inplace
from jgpu.device.recording.ops import ANSWERED, REFUSED, info_of

FLOAT, LONG, BOOL, COMPLEX = torch.float32, torch.int64, torch.bool, torch.complex64
#: Internal ops whose native kernels write out of bounds if their arguments do not fit together.
UNSAFE = ("aten::_sobol_", "aten::_fused_", "aten::_amp_", "aten::_index_put_", "aten::_philox_")


def in_place_ops():
    """Every overload that writes its first argument and cannot resize it."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or not schema.name.endswith("_"):
            continue
        packet = getattr(torch.ops.aten, schema.name[6:], None)
        func = getattr(packet, schema.overload_name or "default", None)
        if func is None or schema.name.startswith(UNSAFE):
            continue
        if not torch._C._dispatch_has_kernel(func.name()):
            continue
        info = info_of(func)
        refused = info.kind in (REFUSED, ANSWERED) or info.refusal is not None
        if info.writes == (0,) and not (refused or info.out_names or info.inplace_view):
            found[info.name] = func
    return found


OPS = in_place_ops()
#: layout, sizes of what is written, sizes of the other tensors, type of each
CASES = [
    ("whole", (3, 1), (3, 4), FLOAT, FLOAT),
    ("whole", (3, 1), (3, 4), LONG, LONG),
    ("whole", (4,), (3, 4), FLOAT, FLOAT),
    ("whole", (), (3,), FLOAT, FLOAT),
    ("part", (3, 1), (3, 4), FLOAT, FLOAT),
    ("part", (3, 4), (3, 1), FLOAT, FLOAT),
    ("part", (3, 4), (), LONG, LONG),
    ("repeated", (3, 4), (3, 4), FLOAT, FLOAT),
    ("repeated", (3, 1), (3, 4), LONG, LONG),
    ("whole", (3, 4), (3, 3), FLOAT, FLOAT),
    ("whole", (3, 4), (3, 4), LONG, FLOAT),
    ("whole", (3, 4), (3, 4), BOOL, LONG),
    ("whole", (3, 4), (), FLOAT, COMPLEX),
    ("whole", (0,), (1,), FLOAT, FLOAT),
]


def filled(shape, dtype, device):
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 3 + 1).to(dtype).reshape(shape).to(device)


def laid_out(layout, shape, dtype, device):
    """A tensor of this shape, and the one that owns the memory."""
    if layout == "part":
        base = filled((3, *shape, 2), dtype, device)
        return base[1, ..., 1], base
    if layout == "repeated":
        base = filled((1,) * len(shape), dtype, device)
        return base.expand(shape), base
    base = filled(shape, dtype, device)
    return base, base


def arguments(func, case, device):
    layout, shape, other, dtype, other_dtype = case
    written, base = laid_out(layout, shape, dtype, device)
    values = []
    for at, argument in enumerate(func._schema.arguments):
        kind = str(argument.type)
        if argument.kwarg_only:
            continue
        if at and "Tensor" in kind:
            if argument.name in ("index", "indices"):
                value = torch.zeros(other, dtype=LONG, device=device)
            else:
                value = filled(other, BOOL if argument.name == "mask" else other_dtype, device)
        elif at and argument.default_value is not None:
            value = argument.default_value
        else:
            value = written if not at else SIMPLE.get(kind)
        values.append([value] if kind == "List[Tensor]" else value)
    return values, written, base


SIMPLE = {
    "number": 2, "float": 2.0, "Optional[number]": 2, "int": 0, "bool": False, "str": "sum",
    "List[number]": [2], "List[int]": [0],
}  # fmt: skip


def outcome(func, case, device):
    """The error on the line, or what is written then and what owns the memory."""
    values, written, base = arguments(func, case, device)
    named = {"rounding_mode": "floor"} if "rounding_mode" in info_of(func).positions else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            func(*values, **named)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            text = str(error).partition("\n")[0]
            return type(error), text.replace("cuda:0", "cpu").replace("torch.cuda.", "torch.")
    return written.shape, written.dtype, repr(written.tolist()), repr(base.tolist())


def is_elementwise(func):
    return inplace._is_elementwise(info_of(func))


#: Reads the number, whose imaginary part is 0, and fills with it; meta kernels refuse its type.
READS_A_NUMBER = "aten::masked_fill_.Tensor"


def compare(ops):
    return {
        (name, *case): (expected, made)
        for name, func in ops.items()
        for case in CASES
        if not (name == READS_A_NUMBER and COMPLEX in case)
        if (made := outcome(func, case, "cuda")) != (expected := outcome(func, case, "cpu"))
    }


GROUPS = range(8)


@pytest.mark.parametrize("group", GROUPS)
def test_elementwise_in_place_ops_compute_or_refuse_as_native_ones(group):
    ops = {name: func for name, func in sorted(OPS.items()) if is_elementwise(func)}
    some = dict(list(ops.items())[group :: len(GROUPS)])
    assert len(some) > 20
    assert compare(some) == {}


def test_no_in_place_op_changes_the_geometry():
    """Errors that depend on values may come later; so only what is written is looked at."""
    changed = []
    for name, func in sorted(OPS.items()):
        for case in () if is_elementwise(func) else CASES[:4]:
            values, written, _ = arguments(func, case, "cuda")
            before = written.shape, written.stride(), written.storage_offset()
            try:
                func(*values)
                torch.cuda.synchronize()
            except (RuntimeError, IndexError, ValueError, TypeError):
                pass
            if (written.shape, written.stride(), written.storage_offset()) != before:
                changed.append((name, case))
    assert changed == []


@pytest.mark.parametrize("dtype", [FLOAT, torch.float16])
def test_a_large_operand_is_refused_without_computing(dtype):
    written = torch.ones(3000, 1, device="cuda", dtype=dtype)
    with pytest.raises(
        RuntimeError, match=r"output with shape \[3000, 1\] doesn't match the .*3000"
    ):
        written.eq_(torch.ones(3000, 3000, device="cuda", dtype=dtype))
    assert written.shape == (3000, 1)
    assert written.sum().item() == 3000


def test_operators_in_place_refuse_a_larger_operand():
    def refused(statement, device):
        names = {
            "s": torch.full((3, 1), 5, device=device),
            "v": torch.full((3, 4), 2, device=device),
        }
        with pytest.raises(RuntimeError) as caught:
            exec(statement, names)
        return str(caught.value), names["s"].tolist()

    for operator in ("**=", "%=", "&=", "|=", "^=", "//=", "+=", "*=", "<<=", ">>="):
        statement = f"s {operator} v"
        assert refused(statement, "cuda") == refused(statement, "cpu"), statement


def test_a_view_that_is_refused_leaves_its_base_and_gradients():
    base = torch.arange(12.0, device="cuda").reshape(3, 4).requires_grad_()
    made = base * 1
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        made[:, 1:2].pow_(torch.full((3, 4), 3.0, device="cuda"))
    (made * 2).sum().backward()
    assert made.tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert base.grad.tolist() == torch.full((3, 4), 2.0).tolist()
