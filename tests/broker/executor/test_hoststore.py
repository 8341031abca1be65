"""Where spilled bytes are: equal when they come back, and no room lost, in whatever order."""

import os
import random
import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jgpu.broker.executor.devices.cpu import CpuDevice
from jgpu.broker.executor.lifecycle import Lifecycle
from jgpu.broker.executor.memory import hoststore
from jgpu.broker.executor.memory.hoststore import HostStore
from jgpu.broker.executor.memory.movement import MemoryMovement
from jgpu.broker.executor.memory.spilling import UNREADABLE, SpillCopier
from jgpu.broker.executor.memory.table import BufferTable
from jgpu.broker.executor.programs import Buffer
from jgpu.broker.executor.works.queue import WorkQueue
from jgpu.broker.settings import ExecutorSettings
from jgpu.sched import MemoryPart


def host(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8)


def noise(nbytes, seed):
    return torch.frombuffer(bytearray(random.Random(seed).randbytes(nbytes)), dtype=torch.uint8)


def save(store, data):
    return store.save(len(data), lambda at, piece: piece.copy_(data[at : at + len(piece)]))


def load(saved):
    back = torch.zeros(saved.nbytes, dtype=torch.uint8)
    saved.load(lambda at, piece: back[at : at + len(piece)].copy_(piece))
    return back


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(hoststore, "CHUNK", 64)


@settings(deadline=None, max_examples=100)
@given(
    pool=st.sampled_from([0, 100, 1000]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("save"), st.integers(1, 300)),
            st.tuples(st.just("drop"), st.integers(0, 20)),
            st.tuples(st.just("load"), st.integers(0, 20)),
        ),
        max_size=40,
    ),
)
def test_what_is_saved_comes_back_equal_and_leaves_no_room_behind(pool, steps):
    store = HostStore(pool, "", host)
    kept = []
    for number, (step, value) in enumerate(steps):
        if step == "save":
            data = noise(value, number)
            kept.append((save(store, data), data))
        elif kept:
            saved, data = kept[value % len(kept)]
            assert torch.equal(load(saved), data)
            if step == "drop":
                kept.pop(value % len(kept))
                saved.drop()
                saved.drop()
        store.validate()
        assert store._in_pool + store._in_file == sum(len(data) for _, data in kept)
    for saved, data in kept:
        assert torch.equal(load(saved), data)
        saved.drop()
    assert (store._in_pool, store._in_file) == (0, 0)
    store.validate()
    store.close()


def test_a_copy_that_fails_keeps_nothing():
    def torn(at, piece):
        raise RuntimeError("the device is gone")

    for pool in (1000, 0):
        store = HostStore(pool, "", host)
        with pytest.raises(RuntimeError, match="gone"):
            store.save(100, torn)
        assert (store._in_pool, store._in_file) == (0, 0)
        store.validate()
        store.close()


def test_what_cannot_be_read_any_more_is_lost_and_says_so_and_the_rest_comes_back():
    woken = threading.Event()
    device = CpuDevice(ExecutorSettings(device="cpu", threads=1))
    store = HostStore(100, "", host)
    spilling = SpillCopier(device, store, woken.set)
    session = SimpleNamespace(
        number=1,
        queue=WorkQueue(),
        movement=MemoryMovement(),
        table=BufferTable(),
        life=Lifecycle(),
    )
    for number, nbytes in ((1, 80), (2, 200)):
        session.table.add(Buffer(number, noise(nbytes, number)))

    def copied(begin):
        begin()
        assert woken.wait(30)
        woken.clear()
        spilling.collect()
        session.table.validate()

    copied(lambda: spilling.spill(session, MemoryPart.KEPT))
    assert (store._in_pool, store._in_file) == (80, 200)
    os.ftruncate(store._file, 0)
    copied(lambda: spilling.restore(session))
    buffers = session.table.buffers
    assert torch.equal(buffers[1].bytes(), noise(80, 1))
    assert buffers[2].poison is UNREADABLE
    assert (session.table.spilled, store._in_pool, store._in_file) == (0, 0, 0)
    spilling.close()
    device.close()
