"""What a program may name, as both ends read it."""

import pytest

from jgpu.wire.vocabulary import CONTRACTED, is_internal, refusal


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        ("_to_sparse", "sparse tensors"),
        ("quantize_per_tensor", "quantised"),
        ("_nested_tensor_size", "nested"),
        ("from_file", "files"),
        ("set_", "storages"),
        ("_slow_conv2d_forward", "call convolution"),
        ("_thnn_differentiable_lstm_cell_backward", "trusts its arguments"),
        ("_segment_nothing", "trusts its arguments"),
    ],
)
def test_what_may_not_run_is_refused_with_a_reason(base, reason):
    assert reason in refusal(base)


@pytest.mark.parametrize("base", ["add", "add_", "mm", "__and__", "_to_copy", "tanh_backward"])
def test_what_may_run_is_not_refused(base):
    assert refusal(base) is None


def test_an_in_place_form_is_its_op():
    assert refusal("tanh_backward_") is None
    assert refusal("from_file_") == refusal("from_file")


def test_internal_ops_are_told_by_their_names():
    assert is_internal("_softmax")
    assert is_internal("native_layer_norm")
    assert not is_internal("__and__")
    assert not is_internal("softmax")


def test_every_contract_is_of_an_op_by_its_plain_name():
    assert all(name == name.strip() and not name.endswith("_") for name in CONTRACTED)
