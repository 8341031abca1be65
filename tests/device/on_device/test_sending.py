"""Device tensors and other processes: sending is refused in words, what is made there works."""

import concurrent.futures
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import DataLoader, Dataset

from jgpu.errors import NotSupported

REFUSED = r"does not support sending \w+ to another process: each process has memory of its own"
WAIT_S = 90


def spawned(function, *arguments):
    process = mp.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    return process


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, device="cuda"),
        lambda: [{"batch": torch.ones(3).cuda()}],
        lambda: nn.Parameter(torch.ones(3, device="cuda")),
        lambda: nn.Linear(2, 2).cuda(),
        lambda: nn.Linear(2, 2).cuda().share_memory(),
        lambda: torch.optim.SGD(nn.Linear(2, 2).cuda().parameters(), 0.1),
        lambda: torch.ones(3, device="cuda").untyped_storage(),
        lambda: torch.ones(3, device="cuda")._typed_storage(),
        lambda: torch.eye(3).to_sparse().cuda(),
        lambda: torch.ones(3, 3, device="cuda").to_sparse(),
    ],
)
def test_what_is_on_the_device_is_not_sent(make):
    with pytest.raises(NotSupported, match=REFUSED):
        ForkingPickler.dumps(make())


def test_events_are_not_sent_and_handles_are_not_given():
    with pytest.raises(NotSupported, match="events shared between processes"):
        ForkingPickler.dumps(torch.cuda.Event())
    with pytest.raises(NotSupported, match=REFUSED):
        reduce_tensor(torch.ones(3, device="cuda"))


def test_pickle_and_host_tensors_are_as_ever():
    x = torch.arange(3.0)
    assert torch.equal(pickle.loads(pickle.dumps(x.cuda())).cpu(), x)
    kept = io.BytesIO()
    torch.save(x.cuda(), kept)
    kept.seek(0)
    assert torch.equal(torch.load(kept).cpu(), x)
    assert reduce_tensor(x)[1][1]._data_ptr() == x.data_ptr()


class Numbers(Dataset):
    """Four rows, which may be on the device."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), index, device="cuda") if self.rows is None else self.rows[index]


def as_they_are(rows):
    return rows


def test_a_start_is_refused_on_its_line():
    with pytest.raises(NotSupported, match=REFUSED):
        spawned(print, torch.ones(3, device="cuda"))
    with pytest.raises(NotSupported, match=REFUSED):
        mp.spawn(print, (nn.Linear(2, 2).cuda(),))
    held = Numbers(torch.ones(4, 2, device="cuda"))
    with pytest.raises(NotSupported, match=REFUSED):
        iter(DataLoader(held, num_workers=1, multiprocessing_context="spawn"))


def train_here(host_model, tensors, answers):
    """Sent a host model and then, through a queue, whatever comes."""
    model = host_model.cuda()
    answers.put(model(torch.ones(1, 2, device="cuda")).tolist())
    for _ in range(2):
        try:
            answers.put(tensors.get(timeout=WAIT_S).tolist())
        except NotSupported as error:
            answers.put(str(error))
    answers.put(model.weight.detach())


def test_a_spawned_process_has_a_session_of_its_own_and_hears_what_it_was_not_sent():
    context = mp.get_context("spawn")
    model = nn.Linear(2, 2)
    tensors, answers = context.Queue(1), context.Queue()
    process = spawned(train_here, model, tensors, answers)
    tensors.put(torch.ones(3, device="cuda"))
    tensors.put(torch.arange(3))
    expected = model.cuda()(torch.ones(1, 2, device="cuda")).tolist()
    assert answers.get(timeout=WAIT_S) == expected
    assert "does not support sending tensors" in answers.get(timeout=WAIT_S)
    assert answers.get(timeout=WAIT_S) == [0, 1, 2]
    process.join(WAIT_S)
    assert process.exitcode == 0
    with pytest.raises(NotSupported, match=REFUSED):  # the last act of a process that has ended
        answers.get(timeout=WAIT_S)


def test_a_loaders_worker_cannot_send_batches_from_the_device():
    loader = DataLoader(
        Numbers(None), num_workers=1, multiprocessing_context="spawn", collate_fn=as_they_are,
        timeout=WAIT_S,
    )  # fmt: skip
    with pytest.raises(NotSupported, match=REFUSED):
        next(iter(loader))
    with pytest.raises(NotSupported, match=REFUSED):  # what it collates into
        torch.UntypedStorage._new_shared(8, device="cuda")


def test_pools_name_what_they_were_not_sent():
    context = mp.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        sent = pool.submit(print, torch.ones(3, device="cuda"))
        with pytest.raises(NotSupported, match=REFUSED):
            sent.result(timeout=WAIT_S)
