"""Calls beside their neighbours, three runs each: `neighbour_sweep.py` over slices and all."""

import json
import shutil
import signal
import sys
from pathlib import Path

import processes
import pytest
import torch
from neighbour_sweep import between, bits, margins, neighbours, other_than
from results import write_result

PROGRAM = Path(__file__).with_name("neighbour_sweep.py")

needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="the allocator that guards tensors is compiled by gcc"
)


def swept(*arguments, timeout_s=processes.DEADLINE_S):
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    done = processes.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@needs_gcc
def test_losses_are_what_they_are_natively_beside_their_neighbours():
    found = swept("--only", "mse_loss")
    assert found["faults"] == []
    assert found["counts"]["same"] > 15


@needs_gcc
def test_an_internal_ops_calls_are_among_them():
    found = swept("--only", "nll_loss_forward")
    assert found["faults"] == []
    assert found["counts"]["same"] > 5


@needs_gcc
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slice_of_all_ops_in_another_order():
    found = swept("--every", 12, "--first", 5, "--seed", 2, timeout_s=580)
    assert found["faults"] == []
    assert found["ops"] > 60
    assert found["counts"]["same"] > 400


@needs_gcc
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_op_beside_its_neighbours():
    found = swept("--seed", 3, timeout_s=3500)
    write_result("neighbours", found)
    assert found["faults"] == []
    assert found["ops"] > 400


class Last:
    """Chance that always takes the last."""

    def choice(self, options):
        return list(options)[-1]


def test_switches_reductions_and_numbers_have_neighbours():
    assert other_than("keepdim", True, Last()) is False
    assert other_than("reduction", 2, Last()) == 1
    assert other_than("reduction", 1, Last()) == 2
    x = torch.ones(2, 3)
    call = (x, [0, 1]), {"keepdim": True}
    itself, *others = neighbours(torch.ops.aten.sum.dim_IntList, call, Last())
    assert itself == call
    assert others == [((x, [0, 2]), {"keepdim": True})] * 4


@needs_gcc
@pytest.mark.parametrize("place", [-1, 5])
def test_a_byte_beside_a_block_is_seen_when_it_is_given_back(place):
    """Five bytes leave room between the block and the page that nobody may touch."""
    code = f"""
import ctypes, os, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import contract_fuzz
if "guarded.so" not in os.environ.get("LD_PRELOAD", ""):
    sys.argv = ["-c", sys.argv[1]]
    contract_fuzz.prepared()
import torch
ctypes.c_int.in_dll(ctypes.CDLL(None), "guarded_on").value = 1
tensor = torch.empty(5, dtype=torch.uint8)
ctypes.memset(tensor.data_ptr() + {place}, 0, 1)
del tensor
"""
    script = "import sys; exec(sys.argv[1])"
    done = processes.run([sys.executable, "-c", script, code], capture_output=True, check=False)
    assert -done.returncode == signal.SIGABRT, done.stderr


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6.0), torch.arange(6).view(2, 3).t(), torch.arange(9.0)[::3], torch.empty(0, 2)],
)
def test_a_tensor_lies_between_margins(tensor):
    copied = between(tensor)
    assert torch.equal(copied, tensor)
    assert copied.stride() == tensor.stride()
    hidden = margins(copied)
    assert bool((hidden == 0x5A).all())
    assert hidden.numel() >= 32 * tensor.itemsize
    if tensor.numel():
        torch.empty(0, dtype=torch.uint8).set_(copied.untyped_storage())[-1] = 0
        assert bool((margins(copied) != 0x5A).any())


def test_bits_tell_zeros_and_nans_apart():
    assert not torch.equal(bits(torch.tensor(0.0)), bits(torch.tensor(-0.0)))
    nan = torch.tensor([float("nan"), 1.0])
    assert torch.equal(bits(nan), bits(nan.clone()))
