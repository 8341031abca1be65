"""Kernels that a notebook registers with `torch.library` are the ones that run on the device."""

import pytest
import torch


@pytest.mark.parametrize("types", [None, "cuda", ("cpu", "cuda")])
def test_an_op_runs_by_its_kernel_for_the_device(types):
    @torch.library.custom_op("jgpu_kernels::twice", mutates_args=(), device_types=types)
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.ones(2, device="cuda")
    assert twice(x).tolist() == [2.0, 2.0]
    twice.register_kernel("cuda")(lambda x: x * 3)
    assert twice(x).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("types", ["cuda", "CUDA", "default"])
def test_an_op_that_is_only_defined_gets_its_kernel_later(types):
    with torch.library._scoped_library("jgpu_kernels", "FRAGMENT") as lib:
        lib.define("later(Tensor x) -> Tensor")
        x = torch.ones(2, device="cuda")
        with pytest.raises(NotImplementedError, match="Could not run 'jgpu_kernels::later'"):
            torch.ops.jgpu_kernels.later(x)
        torch.library.impl("jgpu_kernels::later", types, lambda x: x * 3, lib=lib)
        assert torch.ops.jgpu_kernels.later(x).tolist() == [3.0, 3.0]
