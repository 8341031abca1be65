"""Where nothing is looked up: guards on CUDA refuse what a kernel would look for, and no more.

Runs are of the device's plans, with the CPU's tensors.
"""

from itertools import product

import pytest
import torch
from sketch import CPU, Sketch, all_live, buffers, contiguous

from jgpu.broker.executor.programs import RunContext
from jgpu.broker.executor.programs.checking.guards import CountGuard, check_range, clamped
from jgpu.broker.executor.programs.checking.trusted import Look, guards_of
from jgpu.broker.executor.programs.running.notes import ValueNotes

OPS = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")


def guards(name, shape, *indices, dtype="int64"):
    """Of an index of tensors of these shapes; of a mask where there is a letter before them."""
    made = [
        contiguous(*each[1:], dtype="bool" if each[0] == "m" else "uint8")
        if each and each[0] in ("m", "u")
        else contiguous(*each, dtype=dtype)
        for each in indices
    ]
    return guards_of(name, Look({"self": contiguous(*shape), "indices": made}), "cuda")


@pytest.mark.parametrize("name", OPS)
def test_beside_an_empty_index_nothing_is_looked_up(name):
    for one, other in product([(), (1,), (2, 1), (5, 1)], [(0,), (1, 0), ("m", 0), ("u", 0)]):
        assert guards(name, (0, 0), one, other) == ()
        assert guards(name, (3, 0), one, other, dtype="int32") == ()
    assert guards(name, (0, 3), (0,)) == ()
    assert guards(name, (0, 3, 3), (1,), ("m", 3), (0,)) == ()


@pytest.mark.parametrize("name", OPS)
def test_what_a_kernel_looks_for_is_looked_at_whatever_else_is_empty(name):
    for shape in [(), (1,), (2, 1)]:
        for other in [(), (1,)]:
            found = guards(name, (0, 3, 0), shape, other)
            assert [(guard.low, guard.high, guard.place) for guard in found] == [
                (0, 0, 0),
                (-3, 3, 1),
            ]
    # they do not go together: the op has words for it
    assert len(guards(name, (3, 3), (0,), (2,))) == 2
    # a mask without dimensions stands for nothing
    assert [guard.high for guard in guards(name, (0, 3), (1,), ("m",))] == [0]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("mask", ["m", "u"])
def test_beside_a_mask_an_index_of_what_is_empty_decides_by_the_mask(name, mask):
    within, held = guards(name, (3, 0, 3), (1,), (1,), (mask, 3))
    assert (within.high, within.place) == (3, 0)
    assert isinstance(held, CountGuard)
    assert (held.place, held.most, held.error) == (2, 0, "IndexError")
    found = guards(name, (3, 3), (1,), (mask, 3))
    assert [(guard.high, guard.place) for guard in found] == [(3, 0)]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_mask_that_must_be_empty_is_made_so_and_any_other_is_as_it_was(dtype):
    (held,) = guards("index", (0, 3), (1,), ("m", 3))
    notes = ValueNotes(CPU)
    mask = torch.tensor([0, 2, 0]).to(dtype)
    assert clamped("index", mask, held, notes, 0).tolist() == [0, 0, 0]
    assert clamped("index", mask[:1], held, notes, 1).tolist() == [0]
    assert notes.blocks[0].bytes()[:2].tolist() == [1, 0]
    roomy = CountGuard("mask", 1, "too many")
    assert torch.equal(clamped("masked_scatter", mask, roomy, notes, 2), mask)
    with pytest.raises(IndexError, match="out of bounds for dimension with size 0"):
        check_range("index", mask, held)
    check_range("index", mask[:1], held)


FORMS = {
    "index.Tensor": ("get", ()),
    "_unsafe_index.Tensor": ("get", ()),
    "index_put.default": ("put", (False,)),
    "index_put.default, added": ("put", (True,)),
    "_unsafe_index_put.default": ("put", (False,)),
    "_unsafe_index_put.default, added": ("put", (True,)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("refused", "sizes"), [(False, (1, 0)), (True, (1, 1))])
def test_every_run_of_a_plan_says_the_same_of_an_index_of_what_is_empty(form, refused, sizes):
    way, more = FORMS[form]
    x, value = torch.zeros(0, 3), torch.ones(())
    rows, columns = (torch.zeros(size, dtype=torch.int64) for size in sizes)
    sketch = Sketch(inputs=4)
    seen = [
        sketch.seen(k, contiguous(*each.shape, dtype=str(each.dtype).removeprefix("torch.")))
        for k, each in enumerate((x, rows, columns, value))
    ]
    given = (seen[0], tuple(seen[1:3]), *((seen[3], *more) if way == "put" else ()))
    out = contiguous(*(x.shape if way == "put" else (min(sizes),)))
    sketch.op(form.partition(",")[0], *given, outs=[out])
    definition, notes = sketch.define("cuda-on-host"), ValueNotes(CPU)
    for _ in range(3):
        inputs = buffers(x, rows, columns, value)
        context = RunContext(CPU, {}, notes=notes)
        outcome = definition.run(inputs, (), all_live(definition), b"", context)
        said = [failure.text for failure in outcome.failures]
        assert said == [f"aten::{form.partition(',')[0]}: indices looks into nothing."] * refused
        assert notes.forget() == []


NUMBER = contiguous(1, dtype="int64")


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        *((name, {"dim": 0}) for name in ("index_select", "index_add", "index_copy", "index_fill")),
        *((name, {"dim": 0}) for name in ("index_reduce", "gather", "scatter", "scatter_add")),
        *((name, {}) for name in ("take", "put", "embedding")),
    ],
)
def test_elsewhere_an_index_that_is_empty_itself_is_not_looked_at_and_any_other_is(name, rest):
    argument, table = ("indices", "weight") if name == "embedding" else ("index", "self")
    look = Look({table: contiguous(0, 3), argument: NUMBER, **rest})
    (guard,) = guards_of(name, look, "cuda")
    notes = ValueNotes(CPU)
    empty = torch.zeros(0, dtype=torch.int64)
    assert clamped(name, empty, guard, notes, 0) is empty
    with pytest.raises(IndexError, match="looks into nothing"):
        clamped(name, torch.zeros(1, dtype=torch.int64), guard, notes, 0)
    assert not notes.taken
