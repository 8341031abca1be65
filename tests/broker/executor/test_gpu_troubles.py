"""What an executor says of a GPU that cannot be used, or is lost."""

from pathlib import Path

import pytest
import torch
from client import Executor

from jgpu.wire import messages as m

LOST = str(Path(__file__).with_name("lost_executor.py"))


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="This torch is built for CUDA.")
def test_a_build_of_torch_for_the_cpu_says_what_it_is_and_what_to_install():
    with Executor("cuda") as executor:
        assert isinstance(executor.ready, m.ExecutorFailed)
        assert executor.ready.text == (
            "The torch of the broker's environment is built for the CPU alone. Install a CUDA "
            "build of torch there, or serve from the CPU with `--device cpu`. (Torch not compiled "
            "with CUDA enabled)"
        )


def test_a_device_that_is_lost_in_mid_run_is_told_of_before_the_executor_ends():
    with Executor("cuda", program=(LOST,), capacity=1 << 30) as executor:
        client = executor.connect()
        number = client.floats(1, 2)
        assert client.read_floats(number, 2) == (1, 2)
        client.floats(3, 4)
        failed = executor.control.receive(m.ExecutorFailed)
        assert failed.text.startswith("The GPU is lost: the driver does not reach it any more")
        assert "Look for Xid" in failed.text
        assert executor.process.wait(30) == 3
