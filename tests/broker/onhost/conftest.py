"""Host kernels are tried on one thread: many small tensors, and machines that others use too."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Torch's own threads wait for each other longer than these tensors take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
