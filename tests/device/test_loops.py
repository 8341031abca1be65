"""How many iterations are left, by the loops that a notebook's own lines show."""

import linecache
import sys

import pytest

from jgpu.device.client.notebook.loops import Loops


class Loader(list):
    """Something with a length that is looped over."""


def left_at_each_step(source, **variables):
    """Run a cell that calls `step()`; what is left, as told at each call."""
    loops, found = Loops(clock=lambda: 0.0), []

    def step():
        loops._boundaries += 1
        found.append(loops.left(sys._getframe(1)))
        loops._boundaries = 0

    name = f"<cell {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), {"__name__": "__main__", "step": step, **variables})
    return found


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("for i in range(4):\n    step()", [3, 2, 1, 0]),
        ("for i in range(10, 4, -2):\n    step()", [2, 1, 0]),
        ("n = 3\nfor i in range(n - 1):\n    x = i\n    step()", [1, 0]),
        ("for e in range(2):\n    for i in range(3):\n        step()", [5, 4, 3, 2, 1, 0]),
        ("for e in range(2):\n    for x in loader:\n        step()", [5, 4, 3, 2, 1, 0]),
        ("for i, x in enumerate(loader):\n    step()", [2, 1, 0]),
        ("for x in tqdm(loader):\n    step()", [2, 1, 0]),
        ("for i in tqdm(range(3)):\n    step()", [2, 1, 0]),
        ("for a, b in zip(loader, range(2)):\n    step()", [1, 0]),
        ("for i in range(len(loader)):\n    step()", [2, 1, 0]),
        (
            "def train(loader):\n    for x in loader:\n        step()\n"
            "for epoch in range(2):\n    train(loader)",
            [5, 4, 3, 2, 1, 0],
        ),
        ("step()", [None]),
        ("for x in (y for y in [1]):\n    step()", [None]),
        ("for i in range(*[2]):\n    step()", [None, None]),
        ("i = 0\nwhile i < 2:\n    i += 1\n    step()", [None, None]),
        ("for i in range(2):\n    i = 'other'\n    step()", [1, 0]),
    ],
)
def test_what_is_left_is_read_off_the_lines(source, left):
    assert left_at_each_step(source, loader=Loader("abc"), tqdm=lambda each: each) == left


def test_a_loop_after_another_counts_anew():
    loop = "    for x in loader:\n        step()\n"
    left = left_at_each_step(f"for e in range(2):\n{loop}{loop}", loader=Loader("ab"))
    assert left == [3, 2, 3, 2, 1, 0, 1, 0]


def test_only_news_is_told_and_not_more_often_than_looks_are_taken():
    times = iter([0.0, 0.1, 0.3, 0.6, 0.9])
    loops = Loops(clock=lambda: next(times))
    lefts = iter([100, 98, 97, 40])
    loops.left = lambda frame: next(lefts)
    assert [loops.at_boundary(None) for _ in range(5)] == [100, None, None, None, 40]
    loops.forget()
    assert (loops._said, loops._boundaries) == (None, 0)


def test_a_class_whose_length_raises_is_no_loop_that_is_known():
    class Odd:
        def __len__(self):
            raise RuntimeError("not now")

        def __iter__(self):
            return iter([1])

    assert left_at_each_step("for x in odd:\n    step()", odd=Odd()) == [None]
