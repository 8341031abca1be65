"""Parity cases: everyday programs that copy modules, optimizers and tensors, as notebooks do."""

import copy
import io
import os
import pickle
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from cases import case, state_of, train
from torch import nn
from torch.func import functional_call

sys.path.append(str(Path(__file__).parents[1]))

import processes


def network():
    """A small network."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def batches(device, count, classes=True):
    """Batches of eight rows."""
    made = []
    for _ in range(count):
        y = torch.randint(0, 2, (8,)) if classes else torch.randn(8, 2)
        made.append((torch.randn(8, 4).to(device), y.to(device)))
    return made


def loss_of(net):
    """The loss of a classifier by its batch."""
    return lambda x, y: F.cross_entropy(net(x), y)


@case
def maml_by_deep_copies(device):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    outer = torch.optim.Adam(net.parameters(), 1e-2)
    found = []
    for _ in range(4):
        outer.zero_grad()
        for x, y in batches(device, 3, classes=False):
            inner = copy.deepcopy(net)
            steps = torch.optim.SGD(inner.parameters(), 0.1)
            found += train(inner, steps, lambda x, y, n=inner: F.mse_loss(n(x), y), [(x, y)] * 2)
            grads = torch.autograd.grad(F.mse_loss(inner(x), y), list(inner.parameters()))
            for param, grad in zip(net.parameters(), grads, strict=True):
                param.grad = grad.clone() if param.grad is None else param.grad + grad
        outer.step()
    return found + state_of(net, outer)


@case
def maml_through_the_inner_steps(device):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
    outer = torch.optim.SGD(net.parameters(), 0.05)
    found = []
    for x, y in batches(device, 4, classes=False):
        fast = dict(net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(functional_call(net, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads, strict=True)}
        outer.zero_grad()
        loss = F.mse_loss(functional_call(net, fast, (x,)), y)
        loss.backward()
        outer.step()
        found += [loss, *(copy.deepcopy(p) for p in net.parameters())]
    return found


@case
def moving_average_of_a_deep_copy(device):
    net = network().to(device)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    found = []
    for x, y in batches(device, 5):
        found += train(net, optimizer, loss_of(net), [(x, y)])
        with torch.no_grad():
            for mean, param in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(param, 0.1)
            for mean, buffer in zip(average.buffers(), net.buffers(), strict=True):
                mean.copy_(buffer)
        found.append(average(x))
    return found + state_of(net, average)


@case
def target_network_of_a_q_learner(device):
    online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    target = copy.deepcopy(online)
    optimizer = torch.optim.RMSprop(online.parameters(), 1e-3)
    memory, found = [], []
    for step in range(12):
        state = torch.randn(4).to(device)
        with torch.no_grad():
            action = online(state).argmax().item()
        memory.append((state, action, torch.randn(4).to(device), 0.5 * step))
        if len(memory) < 4:
            continue
        states, actions, following, rewards = zip(*memory[-4:], strict=True)
        values = online(torch.stack(states)).gather(1, torch.tensor(actions).to(device)[:, None])
        with torch.no_grad():
            best = target(torch.stack(following)).max(1).values
        wanted = torch.tensor(rewards).to(device) + 0.9 * best
        loss = F.smooth_l1_loss(values[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss)
        if step % 4 == 3:
            target = copy.deepcopy(online)
        for old, new in zip(target.parameters(), online.parameters(), strict=True):
            old.data.copy_(0.9 * old.data + 0.1 * new.data)
    return found + state_of(online, target)


@case
def ensemble_of_snapshots(device):
    net = network().to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)
    snapshots = []
    for step, batch in enumerate(batches(device, 9)):
        train(net, optimizer, loss_of(net), [batch])
        scheduler.step()
        if step % 3 == 2:
            snapshots.append(copy.deepcopy(net).eval())
    x = torch.randn(8, 4).to(device)
    votes = torch.stack([each(x).softmax(-1) for each in snapshots])
    assert all(p.grad is None for each in snapshots for p in each.parameters())
    return [votes, votes.mean(0), votes.var(0), *state_of(*snapshots)]


@case
def early_stopping_that_restores_a_deep_copy(device):
    net = network().to(device)
    optimizer = torch.optim.Adam(net.parameters(), 0.3)
    x, y = batches(device, 1)[0]
    best, kept, found = float("inf"), None, []
    for batch in batches(device, 8):
        train(net, optimizer, loss_of(net), [batch])
        with torch.no_grad():
            loss = F.cross_entropy(net.eval()(x), y).item()
        net.train()
        found.append(loss)
        if loss < best:
            best = loss
            kept = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    net.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    found += train(net, optimizer, loss_of(net), batches(device, 2))
    return found + state_of(net, optimizer)


@case
def shallow_copies_that_share_parameters(device):
    net = network().to(device)
    twin = copy.copy(net)
    twin.training = False
    view = copy.copy(net[0].weight)
    rows = copy.copy(net[3].weight.data[:1])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = train(net, optimizer, loss_of(net), batches(device, 3))
    rows.zero_()
    with torch.no_grad():
        view.mul_(2)
    x = torch.randn(8, 4).to(device)
    return [*found, view, rows, net(x), twin(x), *state_of(net, twin)]


_READER = """
import pickle, sys, torch
assert "jgpu.device.tensor" not in sys.modules
net, saved = torch.load(sys.argv[1], map_location="cpu", weights_only=False)
net.load_state_dict(saved["net"])
x = torch.arange(12.0).view(3, 4)
pickle.dump([net.eval()(x).tolist(), net[0].weight.requires_grad, saved["step"]],
            open(sys.argv[2], "wb"))
"""


@case
def checkpoint_loaded_where_there_is_no_device(device):
    net = network().to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    found = train(net, optimizer, loss_of(net), batches(device, 3))
    alone = {k: v for k, v in os.environ.items() if not k.startswith("JGPU_")}
    with tempfile.TemporaryDirectory() as place:
        file, out = Path(place) / "file", Path(place) / "out"
        torch.save([net, {"net": net.state_dict(), "step": 3}], file)
        processes.run([sys.executable, "-c", _READER, file, out], env=alone, check=True)
        outputs, requires, step = pickle.loads(out.read_bytes())
    found += [torch.tensor(outputs), requires, step]
    unpickled = pickle.loads(pickle.dumps((net, optimizer)))
    found += train(*unpickled, loss_of(unpickled[0]), batches(device, 2))
    return found + state_of(*unpickled)


@case
def copies_of_sparse_embeddings(device):
    net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2)).to(device)
    sparse = torch.optim.SparseAdam(net[0].parameters(), 1e-2)
    dense = torch.optim.SGD(net[2].parameters(), 0.1)
    found = []
    for _ in range(3):
        words, y = torch.randint(0, 10, (6, 3)).to(device), torch.randint(0, 2, (6,)).to(device)
        sparse.zero_grad()
        dense.zero_grad()
        loss = F.cross_entropy(net(words), y)
        loss.backward()
        twin, steps = copy.deepcopy((net, sparse))
        assert twin[0].weight.grad is None
        sparse.step()
        dense.step()
        F.cross_entropy(twin(words), y).backward()
        steps.step()
        found += [loss, twin[0].weight.detach().clone()]
    return found + state_of(net)


def retried(matrix):
    """The Cholesky factor of the matrix with as much added to its diagonal as it needs."""
    for power in range(8):
        try:
            added = 10.0 ** (power - 4) * torch.eye(len(matrix), device=matrix.device)
            return power, torch.linalg.cholesky(matrix + added)
        except torch.linalg.LinAlgError:
            continue
    raise AssertionError


@case
def retry_after_an_error_of_linear_algebra(device):
    net = nn.Linear(3, 3).to(device)
    found = []
    for scale in (1.0, 10.0):
        trial = copy.deepcopy(net)
        matrix = trial.weight @ trial.weight.t() * scale - scale * torch.eye(3).to(device)
        power, factor = retried(matrix)
        factor.sum().backward()
        found += [power, factor, trial.weight.grad]
        assert net.weight.grad is None
    return found


@case
def a_checkpoint_in_memory_is_taken_up_again(device):
    net = network().to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, amsgrad=True)
    found = train(net, optimizer, loss_of(net), batches(device, 2))
    file = io.BytesIO()
    torch.save({"model": copy.deepcopy(net), "optimizer": optimizer.state_dict()}, file)
    found += train(net, optimizer, loss_of(net), batches(device, 2))
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    again = torch.optim.Adam(saved["model"].parameters(), 1e-2, amsgrad=True)
    again.load_state_dict(saved["optimizer"])
    found += train(saved["model"], again, loss_of(saved["model"]), batches(device, 2))
    return found + state_of(net, saved["model"], again)


class Gate(nn.Module):
    """A layer whose op has a user's kernel for the device."""

    def __init__(self, op):
        super().__init__()
        self.op = op
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.op(x, self.scale)


def gated(x, scale):
    """The product of the input with its scaled sigmoid."""
    return x * torch.sigmoid(x * scale)


def remember_inputs(ctx, inputs, output):
    """Keep what the gradients are computed from."""
    ctx.save_for_backward(*inputs)


def gate_gradients(context, grad):
    """The gradients of `gated`."""
    x, scale = context.saved_tensors
    gate = torch.sigmoid(x * scale)
    slope = grad * x * gate * (1 - gate)
    return grad * gate + slope * scale, (slope * x).sum(0)


@case
def copies_of_a_layer_with_a_kernel_of_its_own(device):
    @torch.library.custom_op("parity_copies::gate", mutates_args=())
    def gate(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        raise AssertionError("The device has a kernel of its own.")

    gate.register_kernel(torch.device(device).type)(gated)
    gate.register_fake(lambda x, scale: torch.empty_like(x))
    gate.register_autograd(gate_gradients, setup_context=remember_inputs)
    # a function around the op, for deepcopy refuses the op itself
    net = nn.Sequential(nn.Linear(4, 8), Gate(lambda *given: gate(*given)), nn.Linear(8, 2)).to(
        device
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    found = train(net, optimizer, loss_of(net), batches(device, 3))
    twin = copy.deepcopy(net)
    found += train(net, optimizer, loss_of(net), batches(device, 3))
    found += [loss_of(twin)(*batch) for batch in batches(device, 2)]
    return found + state_of(net, twin, optimizer)
