"""What CUDA computes otherwise than the CPU, against a device that says it is CUDA.

It computes nothing, so this is about the ops that are recorded, and about the kernel's life: torch
ends a process that has a tensor with gradients on a CUDA device that is not there.
"""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from seat import broker_on

PROGRAM = Path(__file__).with_name("on_cuda.py")
ATTENTION = "_scaled_dot_product_{}_attention.default"
TORCH = tuple(map(int, version("torch").split(".")[:2]))
#: steps of the sequence, one cell each
STEPS = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What was recorded of each model's third step, by the model's name."""
    directory = tmp_path_factory.mktemp("null")
    with broker_on("null", directory, "--JgpuBroker.null_poses_as=cuda") as broker:
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        broker.seat(PROGRAM, directory / "ops.json", environment=hidden).check()
    return json.loads((directory / "ops.json").read_text())


@pytest.mark.e2e
@pytest.mark.timeout(200)
def test_a_kernel_that_trains_all_of_them_lives(trained):
    assert len(trained) == 32


@pytest.mark.e2e
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("model", "forward", "backward"),
    [
        ("dropout", "native_dropout", "native_dropout_backward"),
        ("attention", ATTENTION.format("efficient"), None),
        ("flash", ATTENTION.format("flash"), None),
        ("flash, padded", ATTENTION.format("flash"), None),
        ("efficient", ATTENTION.format("efficient"), None),
        ("efficient, dropout", ATTENTION.format("efficient"), None),
        ("efficient, boolean", ATTENTION.format("efficient"), None),
        ("efficient, additive", ATTENTION.format("efficient"), None),
        ("cudnn", ATTENTION.format("cudnn"), None),
        ("cudnn, boolean", ATTENTION.format("cudnn"), None),
        ("lstm", "_cudnn_rnn", "_cudnn_rnn_backward"),
        ("lstm, all of it", "_cudnn_rnn", "_cudnn_rnn_backward"),
        ("lstm, no bias", "_cudnn_rnn", "_cudnn_rnn_backward"),
        ("lstm, packed", "_cudnn_rnn", "_cudnn_rnn_backward"),
        ("gru", "_cudnn_rnn", "_cudnn_rnn_backward"),
        ("gru, packed", "_cudnn_rnn", "_cudnn_rnn_backward"),
        ("rnn", "_cudnn_rnn", "_cudnn_rnn_backward"),
        ("encoder", ATTENTION.format("efficient"), None),
        ("batch norm", "cudnn_batch_norm", "cudnn_batch_norm_backward"),
        ("batch norm, rows", "_native_batch_norm_legit", "native_batch_norm_backward"),
        ("batch norm, bfloat16", "_native_batch_norm_legit", "native_batch_norm_backward"),
        ("sampled", "cudnn_grid_sampler", "cudnn_grid_sampler_backward"),
        ("sampled, borders", "grid_sampler_2d", "grid_sampler_2d_backward"),
        ("rms norm", "_fused_rms_norm", "_fused_rms_norm_backward"),
        ("softmax of halves", "_softmax", "_softmax_backward_data"),
        ("log softmax of halves", "_log_softmax", "_log_softmax_backward_data"),
        ("softmax, autocast", "_softmax", "_softmax_backward_data"),
    ],
)
def test_the_op_that_cuda_would_run_is_recorded_forward_and_backward(
    trained, model, forward, backward
):
    forward = forward.removesuffix(".default")
    backward = backward or f"{forward}_backward"
    ops = [name.removesuffix(".default") for name in trained[model]]
    assert ops.count(forward) == 1
    assert ops.count(backward) == 1
    assert ops.index(forward) < ops.index(backward)


@pytest.mark.e2e
@pytest.mark.timeout(200)
def test_the_same_tensors_take_another_kernel_under_other_switches(trained):
    kernels = ("flash", "efficient", "cudnn", "flash")
    assert trained["switched"] == [f"_scaled_dot_product_{name}_attention" for name in kernels]


@pytest.mark.e2e
@pytest.mark.timeout(200)
def test_attention_of_three_dimensions_has_a_batch_of_one_where_torch_gives_it_one(trained):
    shape, node = trained["of no batch"]
    assert shape == [3, 5, 8]
    assert (node == "SqueezeBackward1") is (TORCH >= (2, 15))


@pytest.mark.e2e
@pytest.mark.timeout(200)
def test_the_math_way_is_taken_where_nothing_else_is_allowed(trained):
    assert not any("scaled_dot_product" in name for name in trained["math"])
    assert "native_dropout" in " ".join(trained["math"])


@pytest.mark.e2e
@pytest.mark.timeout(200)
def test_without_cudnn_layers_are_made_of_fused_cells(trained):
    ops = trained["without cudnn"]
    assert sum("_thnn_fused_gru_cell" in name and "backward" not in name for name in ops) == STEPS
    assert not any("cudnn" in name for name in ops)


@pytest.mark.e2e
@pytest.mark.timeout(200)
def test_weights_of_a_module_lie_in_one_buffer_and_are_not_copied_again(trained):
    assert not any("copy_" in name for name in trained["lstm"])
