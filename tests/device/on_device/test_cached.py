"""What the kernel remembers answers for no call, tensor or time that it was not made for."""

import io

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


def saved(tensor):
    file = io.BytesIO()
    torch.save({"x": tensor, "again": tensor[1:]}, file)
    file.seek(0)
    return torch.load(file)


def test_what_is_saved_is_what_there_is_now_whoever_holds_an_older_copy():
    """A pickler that failed is kept by its traceback, and with it what it had read."""

    def call(device):
        x, found = torch.arange(3.0, device=device), []
        held = []
        for _ in range(3):
            held.append(x.__reduce_ex__(2))
            found += [t.clone() for t in saved(x).values()]
            x.add_(1)
        return found

    check(call)


def test_tensors_that_share_memory_share_it_in_the_file():
    def call(device):
        found = saved(torch.arange(3.0, device=device))
        found["x"][1] = 9
        return list(found.values())

    check(call)
