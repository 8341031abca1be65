"""`torch.distributed` with gloo: one process, and two that share the device."""

import sys

import processes
import pytest

ALONE = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
try:
    dist.init_process_group("nccl")
except RuntimeError as error:
    print(error)
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
print(dist.get_backend())
x = torch.arange(4.0, device="cuda")
dist.all_reduce(x)
print(x.tolist(), x.device)
work = dist.all_reduce(x, async_op=True)
work.wait()
parts = [torch.zeros(4, device="cuda")]
dist.all_gather(parts, x)
print(parts[0].tolist(), dist.barrier(device_ids=[0]))


def trained(wrap):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    ).cuda()
    model, optimizer = wrap(net), torch.optim.Adam(net.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(5, 4, device="cuda")).square().sum().backward()
        optimizer.step()
    return [parameter.tolist() for parameter in net.parameters()]


plain = trained(lambda net: net)
for given in (
    {"device_ids": [0]},
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
):
    print(trained(lambda net: DistributedDataParallel(net, **given)) == plain)
dist.destroy_process_group()
"""

TOGETHER = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.full((3,), 1.0 + rank, device="cuda")
dist.all_reduce(x)
assert x.tolist() == [3.0] * 3
parts = [torch.zeros(1, device="cuda") for _ in range(2)]
dist.all_gather(parts, torch.tensor([float(rank)], device="cuda"))
assert [part.item() for part in parts] == [0.0, 1.0]
w = torch.full((2,), 3.0, device="cuda", requires_grad=True)
sent = torch.full((2,), 1.0 + rank, device="cuda")
loss = (w * sent).sum()
before = sent._version
dist.all_gather([torch.zeros(2, device="cuda") for _ in range(2)], sent)
dist.all_gather_into_tensor(torch.zeros(4, device="cuda"), sent)
dist.reduce_scatter_tensor(torch.zeros(1, device="cuda"), sent)
assert sent._version == before
loss.backward()
y = torch.full((2,), float(rank), device="cuda")
dist.broadcast(y, 1)
assert y.tolist() == [1.0, 1.0]

torch.manual_seed(rank)
net = torch.nn.Linear(4, 2)
given = torch.linspace(-1, 1, 32).view(8, 4)
alone = torch.nn.Linear(4, 2)
model = DistributedDataParallel(net.cuda())
alone.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
model(given[rank::2].cuda()).square().mean().backward()
alone(given).square().mean().backward()
for ours, whole in zip(net.parameters(), alone.parameters()):
    torch.testing.assert_close(ours.grad.cpu(), whole.grad)


class Branches(torch.nn.Module):  # of which a call takes one, and no call the last
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 2) for _ in range(4))

    def forward(self, x, which):
        return self.parts[which](x)


def gradients(device):  # in the steps the ranks take branches of their own, or both the same
    torch.manual_seed(0)
    net = Branches().to(device)
    model = DistributedDataParallel(net, find_unused_parameters=True)
    found = []
    for step, which in enumerate((rank, 2, 1 - rank)):
        net.zero_grad()
        model(given[rank::2].to(device) + step, which).square().mean().backward()
        found.append([w.grad is not None and w.grad.tolist() for w in net.parameters()])
    return found


native = gradients("cpu")
assert gradients("cuda") == native
assert native[0][:4].count(False) == 0 and native[0][4:] == [False] * 4
try:
    torch.cuda.set_device(rank)
except RuntimeError as error:
    assert rank == 1 and "invalid device ordinal" in str(error)
dist.destroy_process_group()
"""


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_one_process_of_a_distributed_program_trains_as_without_it(broker):
    lines = broker.seat(ALONE, timeout_s=250).check().out.splitlines()
    assert lines == [
        'The shared device does not support NCCL: there is one device; use the backend "gloo".',
        "gloo",
        "[0.0, 1.0, 2.0, 3.0] cuda:0",
        "[0.0, 1.0, 2.0, 3.0] None",
        *["True"] * 5,
    ]


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_two_processes_of_torchrun_average_their_gradients(broker, tmp_path):
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    done = processes.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(script)),
        ],
        env=broker.environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
