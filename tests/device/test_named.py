"""The lists of ops that are named by hand agree with what serves them."""

from jgpu.device.composed.named import by_hand
from jgpu.device.recording import answers, ops


def test_every_op_that_the_kernel_answers_has_its_answer():
    assert set(answers.ANSWERS) == ops._ANSWERED


def test_every_list_of_names_has_a_reason_and_names():
    assert all(reason and names for reason, names in by_hand().items())
