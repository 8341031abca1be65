"""Dropout as the host computes it, op by op: native bits, forward, back and once more."""

import pytest
import torch
from torch.nn.functional import dropout


def results(where, x, p):
    """Two draws, the gradient by what is dropped, the gradient of that, and a draw beyond."""
    torch.manual_seed(3)
    x = x.detach().to(where).requires_grad_()
    seen = [dropout(x, p), dropout(x.sin(), p)]
    total = (seen[0] * seen[1] * x).pow(2).sum()
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    made = [*seen, first, second, torch.rand(3, device=where)]
    return [each.detach().cpu() for each in made], [each.stride() for each in seen]


WHOLE = torch.linspace(-1, 1, 120).view(2, 3, 4, 5)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_has_native_bits_and_needs_no_stand_ins(stand_ins, p, dtype):
    for x in (WHOLE, WHOLE.transpose(1, 3), WHOLE[:, 1], WHOLE[0, 0, 0, 0]):
        for _ in range(3):
            shared, native = (results(where, x.to(dtype), p) for where in ("cuda", "cpu"))
            assert shared[1] == native[1]
            for ours, theirs in zip(shared[0], native[0], strict=True):
                assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
    assert stand_ins == []


def test_what_drops_nothing_returns_what_it_is_given(stand_ins):
    x = WHOLE.cuda().requires_grad_()
    with torch.inference_mode():
        inside = WHOLE.cuda()
        assert dropout(inside, 0.5, training=False) is inside
    for made in (dropout(x, 0.5, training=False), dropout(x, 0.0), dropout(x, 0)):
        assert made is x
    assert dropout(x[:0], 0.5).shape == x[:0].shape
    assert stand_ins == []


def test_in_inference_it_draws_as_ever(stand_ins):
    x, seen = WHOLE.cuda(), []
    for _ in range(2):
        torch.manual_seed(0)
        with torch.inference_mode(mode=len(seen) > 0):
            seen.append(dropout(x, 0.5))
    assert torch.equal(seen[0], seen[1])
    assert seen[1].is_inference()
    assert stand_ins == []


@pytest.mark.parametrize(
    "call",
    [
        lambda x: dropout(x, 1.5),
        lambda x: dropout(x, -0.1),
        lambda x: torch.dropout(x, 1.5, False),
        lambda x: torch.dropout(x, float("nan"), True),
        lambda x: dropout(x.long(), 0.5),
        lambda x: dropout(x, 1.0),
    ],
)
def test_what_is_left_to_torch_is_as_natively(call):
    said = []
    for where in ("cpu", "cuda"):
        try:
            made = call(WHOLE.to(where))
            said.append(made.tolist() if isinstance(made, torch.Tensor) else made)
        except (RuntimeError, ValueError) as error:
            said.append((type(error), str(error)))
    assert said[0] == said[1]
