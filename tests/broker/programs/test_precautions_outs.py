"""`out`s that do not lie row by row are filled, and nothing beside them is written."""

import json
import sys
from pathlib import Path

import processes
import pytest
import torch
from sketch import Sketch, buffers, context

from jgpu.broker.executor.programs.geometry import geometry_of

SWEEP = Path(__file__).with_name("outs_sweep.py")
FILL = 77


def written(name, out, room, *inputs, given=None):
    """The buffer of `room` elements after the op has filled a window of this geometry in it."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    slots = [*tensors, torch.full((room,), float(FILL))]
    sketch, left = Sketch(len(slots)), iter(range(len(tensors)))
    seen = [
        sketch.seen(next(left), geometry_of(x)) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]
    window = torch.empty(room, device="meta").as_strided(*out)
    filled = sketch.seen(len(tensors), geometry_of(window))
    sketch.op(name, *seen, outs=(None,), out=filled, **(given or {}))
    definition, held = sketch.define(), buffers(*slots)
    for _ in range(3):  # the third is compiled
        run = definition.run(held, (), b"", b"", context())
    if run.failures:
        return run.failures[0].text
    return held[-1].bytes().view(torch.float32)


@pytest.mark.parametrize("name", ["triu", "tril"])
def test_a_triangle_of_many_matrices_is_written_into_its_own_places(name):
    x = torch.arange(1.0, 37).reshape(2, 2, 3, 3)
    out = (2, 2, 3, 3), (9, 18, 3, 1)
    found = written(f"{name}.out", out, 60, x, 0)
    assert torch.equal(found[:36].as_strided(*out), getattr(x, name)())
    assert (found[36:] == FILL).all()


def test_a_softmax_is_not_written_past_the_end_of_an_expanded_tensor():
    x = torch.randn(3, 1000)
    text = written("_softmax.out", ((3, 1000), (0, 0)), 1, x, 1, False)
    assert "more than one element of the written-to tensor" in text


def test_a_triangular_system_is_solved_where_its_out_lies():
    """A copy would lie otherwise, and be solved the other way round: other last bits."""
    torch.manual_seed(0)
    a = torch.randn(5, 5).triu() + 3 * torch.eye(5)
    inputs = a, torch.randn(5, 7)
    out = torch.empty(7, 5).t()
    torch.linalg.solve_triangular(*inputs, upper=True, out=out)
    geometry = (5, 7), (1, 5)
    found = written("linalg_solve_triangular.out", geometry, 36, *inputs, given={"upper": True})
    assert torch.equal(found[:35].as_strided(*geometry), out)
    assert found[35] == FILL


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_op_writes_beside_its_out():
    done = processes.run([sys.executable, SWEEP], capture_output=True, check=True, timeout=580)
    found = json.loads(done.stdout)
    assert found["forms"] > 300
    assert found["strays"] == {}
