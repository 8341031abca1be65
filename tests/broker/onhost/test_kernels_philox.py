"""Random numbers of the device on the host: the generator itself, and its map to elements."""

import pytest
import torch

from jgpu.broker.executor.devices.onhost.kernels.drawing.launches import increment, numbers
from jgpu.broker.executor.devices.onhost.kernels.philox import (
    Philox,
    normals,
    normals64,
    philox,
    uniforms,
    uniforms64,
)

ONES, PI = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
#: threads of the largest grid: 132 multiprocessors of 2,048
THREADS = 132 * 2048


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_the_function_gives_the_published_answers(counter, key, answer):
    """Those of Random123 for philox4x32 of ten rounds."""
    assert tuple(philox(torch.tensor(counter), key).tolist()) == answer


def test_a_seed_an_offset_and_a_thread_are_the_words_of_key_and_counter():
    draw = Philox(0x0123456789ABCDEF, 4 * 0x1_0000_0003)
    counter = torch.tensor([5, 1, 7, 2])  # offset / 4 + 2, and the thread, low words first
    found = draw.blocks(torch.tensor(0x2_0000_0007), 2)
    assert torch.equal(found, philox(counter, (0x89ABCDEF, 0x01234567)))


@pytest.mark.parametrize("offset", [1, 6, -4])
def test_an_offset_between_two_blocks_is_refused(offset):
    with pytest.raises(ValueError, match="multiple of 4"):
        Philox(0, offset)


def test_elements_are_drawn_by_thread_and_turn_as_a_grid_strides():
    draw, count = Philox(3, 8), 5 * THREADS + 3
    found = numbers(draw, count, uniforms)

    def of(thread, turn, place):
        return uniforms(draw.blocks(torch.tensor(thread), turn))[place]

    for element, place in (
        (0, (0, 0, 0)),
        (17, (17, 0, 0)),
        (THREADS + 1, (1, 0, 1)),
        (3 * THREADS - 1, (THREADS - 1, 0, 2)),
        (4 * THREADS, (0, 1, 0)),
        (5 * THREADS + 2, (2, 1, 1)),
    ):
        assert found[element] == of(*place)


def test_what_takes_64_bits_gets_two_elements_of_a_block():
    draw = Philox(3, 8)
    found = numbers(draw, 2 * THREADS + 1, uniforms64)
    block = uniforms64(draw.blocks(torch.tensor(0), 0))
    assert (found[0], found[THREADS]) == (block[0], block[1])
    assert found[2 * THREADS] == uniforms64(draw.blocks(torch.tensor(0), 1))[0]


@pytest.mark.parametrize(
    ("count", "at_once", "moved"),
    [
        (0, 4, 0),
        (1, 4, 4),
        (256, 4, 4),
        (1025, 4, 4),
        (4 * THREADS, 4, 4),
        (4 * THREADS + 1, 4, 8),
        (4 * THREADS, 2, 8),
        (9 * THREADS, 2, 20),
    ],
)
def test_an_offset_moves_by_four_for_each_turn_of_the_grid(count, at_once, moved):
    assert increment(count, at_once) == moved


def test_uniform_numbers_are_above_nothing_and_at_most_one():
    ends = torch.tensor([[0, ONES, 1, 1 << 31]])
    assert uniforms(ends).tolist() == [[2**-33, 1.0, 3 * 2**-33, 0.5]]
    low, high = uniforms64(torch.tensor([[0, 0, (1 << 21) - 1, ONES]]))[0].tolist()
    assert (low, high) == (2**-54, 1.0)


@pytest.mark.parametrize(
    ("of_blocks", "dtype"), [(normals, torch.float32), (normals64, torch.float64)]
)
def test_normal_numbers_come_in_pairs_on_a_circle(of_blocks, dtype):
    """Box and Muller: the squares of a pair add up to -2 log of the first uniform number."""
    blocks = Philox(11, 0).blocks(torch.arange(500), 0)
    pairs = of_blocks(blocks).unflatten(-1, (-1, 2))
    assert pairs.dtype is dtype
    whole = uniforms(blocks)[:, ::2] if dtype is torch.float32 else uniforms64(blocks)[:, :1]
    torch.testing.assert_close((pairs**2).sum(-1), -2 * whole.log())
