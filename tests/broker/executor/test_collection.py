"""Python's own garbage collection is kept from very many buffers, and from nothing for good."""

import gc
import weakref

import pytest

from jgpu.broker.executor.memory.collection import LongLived


class Circle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()


def test_what_is_alive_beside_very_many_buffers_is_not_looked_at():
    counts = [200_000, 70_000]
    look = LongLived(lambda: counts.pop(0)).look
    kept = [[] for _ in range(1000)]
    look()
    assert gc.get_freeze_count() >= len(kept)
    look()
    assert gc.get_freeze_count() >= len(kept), "there are not few yet"


def test_garbage_of_the_time_with_many_buffers_is_collected_when_there_are_few():
    counts = [200_000, 10]
    look = LongLived(lambda: counts.pop(0)).look
    circle = Circle()
    seen = weakref.ref(circle)
    look()
    del circle
    gc.collect()
    assert seen() is not None
    look()
    assert seen() is None


def test_where_there_were_never_many_buffers_nothing_is_set_aside():
    gc.unfreeze()
    before = gc.get_freeze_count()
    LongLived(lambda: 99_999).look()
    assert gc.get_freeze_count() == before
