"""Device tensors, modules and optimizers survive round trips through joblib and cloudpickle."""

import io

import pytest
import torch
from torch import nn


def through_joblib(value):
    joblib = pytest.importorskip("joblib")
    file = io.BytesIO()
    joblib.dump(value, file)
    file.seek(0)
    return joblib.load(file)


def through_cloudpickle(value):
    cloudpickle = pytest.importorskip("cloudpickle")
    return cloudpickle.loads(cloudpickle.dumps(value))


WAYS = [through_joblib, through_cloudpickle]


@pytest.mark.parametrize("way", WAYS)
def test_tensors_come_back_on_the_device(way):
    x = torch.arange(6.0, device="cuda").view(2, 3)
    whole, row, sparse, rows, leaf = way(
        [x, x[1], x.to_sparse(), x.to_sparse(1), nn.Parameter(x.clone())]
    )
    assert {each.device.type for each in (whole, row, sparse, rows, leaf)} == {"cuda"}
    assert (whole.tolist(), row.tolist()) == (x.tolist(), x[1].tolist())
    assert sparse.to_dense().tolist() == rows.to_dense().tolist() == x.tolist()
    assert isinstance(leaf, nn.Parameter)


@pytest.mark.parametrize("way", WAYS)
def test_a_module_and_its_optimizer_go_on_as_natively(way):
    def run(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
        optimizer = torch.optim.Adam(net.parameters(), 0.1)
        told = []
        for step in range(4):
            loss = net(torch.linspace(-1, 1, 6).view(2, 3).to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.append(loss.item())
            if step == 1:
                net, optimizer = way((net, optimizer))
        return told

    assert run("cuda") == run("cpu")


def test_a_function_that_holds_a_device_tensor_is_written_with_it():
    x = torch.ones(2, device="cuda")
    made = through_cloudpickle(lambda: x * 3)()
    assert (made.device.type, made.tolist()) == ("cuda", [3, 3])
