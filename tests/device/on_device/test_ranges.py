"""Numbers that leave a plan's ranges raise on their line, also where a plan is known already."""

import math

import pytest
import torch

CALLS = {
    "normal_": (lambda x, n: x.normal_(0.0, n), (0.0, 1.0, 3), (-1.0, -math.inf)),
    "uniform_": (lambda x, n: x.uniform_(n, 1.0), (0.5, 0, 1.0), (1.5, 2)),
    "exponential_": (lambda x, n: x.exponential_(n), (0.5, 2.0), (0.0, -1.0)),
    "bernoulli_": (lambda x, n: x.bernoulli_(n), (0.0, 0.5, 1.0), (-0.1, 1.5)),
    "fill_ of int8": (lambda x, n: x.to(torch.int8).fill_(n), (0, 127, -128), (128, -129, 2**53)),
    "fill_ of float16": (lambda x, n: x.half().fill_(n), (1.0, -65504.0, math.inf), (1e6, -1e9)),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_compared_with_the_ranges_of_its_plan(name):
    call, inside, outside = CALLS[name]
    x = torch.ones(3, device="cuda")
    for _ in range(3):  # inferred first, then recorded by the known plan
        for number in inside:
            call(x, number)
        for number in outside:
            with pytest.raises(RuntimeError):
                call(x, number)
    assert torch.ones(2, device="cuda").sum().item() == 2.0
