"""What the kernel remembers answers for no call, tensor or time that it was not made for."""

import pytest
import torch


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
