"""Sizes that data decide: what the rules say is what the kernels then take, or a bound to it."""

import pytest
import torch
from hostile_calls import accepted, calls
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from jgpu.broker.executor.programs.checking.arguments import bind
from jgpu.broker.executor.programs.checking.inference import infer
from jgpu.broker.executor.programs.geometry import required_bytes
from jgpu.broker.executor.programs.precautions.language import Attempt
from jgpu.broker.executor.programs.precautions.sizes import BY_GEOMETRY, SIZES

CPU = torch.device("cpu")


@pytest.mark.slow  # looks at thousands of calls, of all ops
@pytest.mark.timeout(300)
def test_every_op_that_nothing_foretells_has_a_size_rule():
    """An accepted op whose result's size depends on data has a rule, or a word that it does not."""
    known = accepted()
    found = {info.base.removesuffix("_") for info in known.values() if info.dynamic}
    for name, own in calls(databases=False).items():
        for op, seen in own:
            bound = bind(op, known[name], CPU)
            if infer(known[name], bound, [(each, required_bytes(each)) for each in seen]) is None:
                found.add(known[name].base.removesuffix("_"))
    assert len(found) > 40
    assert sorted(found - SIZES.keys() - BY_GEOMETRY) == []
    assert not SIZES.keys() & BY_GEOMETRY


def taken(result):
    """Bytes of all results."""
    return sum(t.numel() * t.element_size() for t in tree_leaves(result))


X = torch.tensor([[0, 3, 0, 5], [2, 0, 0, 1], [0, 0, 7, 7]])
MASK = X > 0
REPEATS = torch.tensor([2, 0, 5])
EXACT = {
    "nonzero": ("nonzero.default", X),
    "nonzero of one": ("nonzero.default", torch.tensor([0.0, 2.0])),
    "argwhere": ("argwhere.default", X),
    "masked_select": ("masked_select.default", X, MASK),
    "masked_select spread": ("masked_select.default", X, torch.tensor([True, False, True, True])),
    "index by mask": ("index.Tensor", X, [MASK]),
    "index by a row's mask": ("index.Tensor", X, [torch.tensor([True, False, True])]),
    "index by a column's mask": (
        "index.Tensor",
        X,
        [None, torch.tensor([True, False, True, True])],
    ),
    "index by both": (
        "index.Tensor",
        X,
        [torch.tensor([True, False, True]), torch.tensor([[0], [1]])],
    ),
    "bincount": ("bincount.default", X.flatten()),
    "bincount at least": ("bincount.default", X.flatten(), None, 20),
    "one_hot": ("one_hot.default", X),
    "one_hot of some": ("one_hot.default", X, 9),
    "repeat_interleave": ("repeat_interleave.Tensor", REPEATS),
    "histogram": ("histogram.bin_ct", torch.ones(5), 7),
    "triu_indices": ("triu_indices.default", 5, 7, -2),
    "tril_indices": ("tril_indices.default", 5, 7, 3),
    "where": ("where.default", MASK),
}
BOUNDED = {
    "unique": ("_unique2.default", X, True, True, True),
    "unique rows": ("unique_dim.default", X, 0, True, True, True),
    "unique_consecutive": ("unique_consecutive.default", X, True, True),
    "repeat_interleave self": ("repeat_interleave.self_Tensor", X, REPEATS, 0),
    "repeat_interleave flat": ("repeat_interleave.self_Tensor", X, torch.tensor([3])),
    "histogramdd": ("histogramdd.default", torch.ones(5, 2), [3, 4]),
    "combinations": ("combinations.default", torch.arange(6), 3),
    "cov": ("cov.default", torch.ones(5, 7)),
    "ctc": ("_ctc_loss.default", torch.ones(6, 2, 5), torch.ones(2, 3, dtype=torch.int64), [6, 6],
            [3, 2]),
}  # fmt: skip


@pytest.mark.parametrize("case", [*EXACT, *BOUNDED])
def test_what_a_rule_says(case):
    name, *args = {**EXACT, **BOUNDED}[case]
    info = accepted_op(name)
    result = info.call(*args)
    said = SIZES[info.base](Attempt(info, tuple(args), {}))
    if case in EXACT:
        assert said == taken(result)
    else:
        assert taken(result) <= said <= 16 * taken(result)


def accepted_op(name):
    """What is known of an op."""
    from jgpu.broker.executor.programs.checking.ops import resolve

    return resolve(f"aten::{name}", "cpu")


@given(rows=st.integers(0, 9), columns=st.integers(0, 9), offset=st.integers(-12, 12))
def test_triangles_are_counted_exactly(rows, columns, offset):
    for name in ("triu_indices", "tril_indices"):
        info = accepted_op(f"{name}.default")
        said = SIZES[name](Attempt(info, (rows, columns, offset), {}))
        assert said == taken(info.call(rows, columns, offset))


def test_a_size_past_all_numbers_is_no_error_of_the_rule():
    info = accepted_op("repeat_interleave.Tensor")
    huge = torch.tensor([(1 << 63) - 1] * 3)
    assert SIZES["repeat_interleave"](Attempt(info, (huge,), {})) == 1 << 62
