"""Factors and pivots that solvers trust: what factorizations leave passes, all else does not."""

import pytest
import torch
from msgspec import structs
from sketch import CPU, Sketch, buffers, contiguous

from jgpu.broker.executor.programs import RunContext
from jgpu.broker.executor.programs.checking.guards import IndexGuard, check_range, clamped
from jgpu.broker.executor.programs.checking.trusted import Look, guards_of
from jgpu.broker.executor.programs.running.notes import ValueNotes
from jgpu.errors import ProgramError

CONTEXT = RunContext(CPU, {})

#: rows of four pivots, counting from 1: those that a factorization may leave, and others
FACTORED = ([1, 2, 3, 4], [4, 4, 4, 4], [-2, -2, 3, 4], [-4, -4, -4, -4], [3, -3, -3, 4])
UNFACTORED = (
    [1, 2, 3, -4], [-2, -2, -4, 4], [-3, -4, 3, 4], [-2, -2, -2, 4], [1, 2, 3, 5], [1, 2, 3, 0],
    [2, 1, 3, 4], [-1, -1, 3, 4], [1, -2, -2, 4], [-5, -5, 3, 4], [1 << 62, 2, 3, 4],
)  # fmt: skip


def ldl_solve(batch, right, stride=(), count=4):
    """A definition of one call: LD and pivots of a batch, and a right side of another."""
    factors = contiguous(*batch, count, count)
    if stride:
        factors = structs.replace(factors, stride=stride)
    pivots = contiguous(*batch, count, dtype="int64")
    sketch = Sketch(inputs=3)
    parts = factors, pivots, contiguous(*right, count, 1)
    slots = [sketch.seen(k, part) for k, part in enumerate(parts)]
    result = torch.broadcast_shapes(batch, right)
    strides = contiguous(*result, 1, count).stride
    made = contiguous(*result, count, 1)
    made = structs.replace(made, stride=(*strides[:-2], 1, count))
    sketch.op("linalg_ldl_solve.default", *slots, outs=[made])
    return sketch.define()


def test_pivots_are_looked_at_as_a_whole():
    definition = ldl_solve((), ())

    def run(row):
        inputs = buffers(torch.eye(4), torch.tensor(row), torch.ones(4, 1))
        return definition.run(inputs, (), b"\x01", b"", CONTEXT).failures

    assert [run(row) for row in FACTORED] == [[]] * len(FACTORED)
    for row in UNFACTORED:
        (failure,) = run(row)
        assert failure.error == "IndexError"
        assert "pivots" in failure.text


def test_on_cuda_pivots_of_no_factorization_exchange_nothing():
    guard = IndexGuard("pivots", -4, 5, factored=True)
    for row in UNFACTORED:
        notes = ValueNotes(CPU)
        safe = clamped("aten::linalg_ldl_solve", torch.tensor([row, FACTORED[2]]), guard, notes, 0)
        assert safe.tolist() == [FACTORED[0], FACTORED[2]]
        assert notes.blocks[0].bytes()[:2].tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_every_factorization_leaves_pivots_that_are_let_through(dtype):
    torch.manual_seed(5)
    pairs = 0
    for count in (*range(1, 9), 40):
        x = torch.randn(20, count, count, dtype=dtype) * (torch.rand(count, count) < 0.6)
        for matrix, hermitian in ((x + x.mT, False), (x + x.mH, True)):
            matrix = matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
            pivots = torch.linalg.ldl_factor_ex(matrix, hermitian=hermitian).pivots
            look = Look({"LD": contiguous(*matrix.shape)})
            (guard,) = guards_of("linalg_ldl_solve", look, "cpu")
            check_range("aten::linalg_ldl_solve", pivots, guard)
            pairs += int((pivots < 0).sum())
    assert pairs > 100


@pytest.mark.parametrize(
    ("batch", "right", "stride"),
    [((1,), (3,), ()), ((2,), (3, 2), ()), ((2, 1), (2, 1), (16, 400, 1, 4))],
)
def test_factors_that_a_solver_would_read_past_are_refused(batch, right, stride):
    with pytest.raises(ProgramError, match="batch"):
        ldl_solve(batch, right, stride)


@pytest.mark.parametrize(("batch", "right"), [((), ()), ((), (3,)), ((2,), (2,)), ((3, 2), (2,))])
def test_factors_of_the_whole_batch_may_be_used(batch, right):
    assert ldl_solve(batch, right).ops == 1
