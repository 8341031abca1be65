"""Types that an op does not take: errors of native classes, on the line that causes them."""

import pytest
import torch

_CALLS = {
    "complex": lambda x: torch.complex(x, x),
    "eig": torch.linalg.eig,
    "eigvals": torch.linalg.eigvals,
    "eigvals into out": lambda x: torch.linalg.eigvals(
        x, out=torch.empty(4, dtype=torch.complex64, device=x.device)
    ),
    "polar": lambda x: torch.polar(x, x),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("name", _CALLS)
def test_a_type_that_a_table_of_a_meta_kernel_lacks_is_refused_in_native_words(name, dtype):
    found = []
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError) as caught:
            _CALLS[name](torch.ones(4, 4).to(dtype).to(device))
        found.append((caught.type, str(caught.value)))
    assert found[0] == found[1]


def test_a_large_tensor_of_a_wrong_type_is_refused_by_a_runtime_error():
    with pytest.raises(RuntimeError, match=r"does not take tensors of these types: torch\.int64"):
        torch.linalg.eigvals(torch.ones(2100, 2100, dtype=torch.int64, device="cuda"))
