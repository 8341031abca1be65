"""Every optimizer and scheduler, clipping, accumulation, groups, and what they share with `.to`."""

import copy

import torch
import torch.nn.functional as F
from cases import case, named, state_of, train
from torch import nn, optim

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.05),
    "sgd_momentum": lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3),
    "sgd_nesterov": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "sgd_maximize": lambda p: optim.SGD(p, 1e-4, maximize=True),
    "adam": lambda p: optim.Adam(p, 1e-2),
    "adam_amsgrad": lambda p: optim.Adam(p, 1e-2, amsgrad=True, weight_decay=1e-2),
    "adamw": lambda p: optim.AdamW(p, 1e-2),
    "nadam": lambda p: optim.NAdam(p, 1e-2),
    "radam": lambda p: optim.RAdam(p, 1e-2),
    "adamax": lambda p: optim.Adamax(p, 1e-2),
    "adadelta": lambda p: optim.Adadelta(p, 1.0),
    "adagrad": lambda p: optim.Adagrad(p, 1e-2, lr_decay=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, 1e-3),
    "rmsprop_centered": lambda p: optim.RMSprop(p, 1e-3, centered=True, momentum=0.9),
    "rprop": lambda p: optim.Rprop(p, 1e-3),
    "asgd": lambda p: optim.ASGD(p, 1e-2, t0=3),
    "adafactor": lambda p: optim.Adafactor(p, 1e-2),
    "adam_foreach": lambda p: optim.Adam(p, 1e-2, foreach=True),
    "adamw_foreach": lambda p: optim.AdamW(p, 1e-2, foreach=True),
    "sgd_foreach": lambda p: optim.SGD(p, 0.05, momentum=0.9, foreach=True),
    "rmsprop_foreach": lambda p: optim.RMSprop(p, 1e-3, foreach=True),
    "adam_fused": lambda p: optim.Adam(p, 1e-2, fused=True),
    "sgd_fused": lambda p: optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam_with_a_tensor_rate": lambda p: optim.Adam(p, torch.tensor(1e-2)),
    "adam_capturable": lambda p: optim.Adam(p, 1e-2, capturable=True),
}

SCHEDULERS = {
    "step": lambda o: optim.lr_scheduler.StepLR(o, 2),
    "multi_step": lambda o: optim.lr_scheduler.MultiStepLR(o, [2, 5]),
    "exponential": lambda o: optim.lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 6),
    "cosine_restarts": lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "linear": lambda o: optim.lr_scheduler.LinearLR(o, 0.3, total_iters=4),
    "one_cycle": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=60),
    "cyclic": lambda o: optim.lr_scheduler.CyclicLR(o, 1e-3, 0.1, 3),
    "polynomial": lambda o: optim.lr_scheduler.PolynomialLR(o, 8),
}


def small_net(device):
    net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
    return net.to(device)


def small_batches(device, count=10):
    found = []
    for _ in range(count):
        x = torch.randn(16, 12)
        found.append((x.to(device), (x.abs().sum(1) * 3).long().remainder(4).to(device)))
    return found


def _loss_of(net):
    return lambda x, y: F.cross_entropy(net(x), y)


def _optimizer_case(name, make):
    @named(f"optimizer_{name}")
    def run(device):
        batches, net = small_batches(device), small_net(device)
        return train(net, make(net.parameters()), _loss_of(net), batches)


def _scheduler_case(name, make):
    @named(f"scheduler_{name}")
    def run(device):
        batches, net = small_batches(device), small_net(device)
        optimizer = optim.SGD(net.parameters(), 0.1, momentum=0.9)
        scheduler = make(optimizer)
        found = train(net, optimizer, _loss_of(net), batches, scheduler=scheduler)
        return [*found, *scheduler.get_last_lr()]


for _name, _make in OPTIMIZERS.items():
    if _name not in ("adam_capturable",):
        _optimizer_case(_name, _make)
for _name, _make in SCHEDULERS.items():
    _scheduler_case(_name, _make)


@case
def scheduler_on_plateau_reads_the_loss(device):
    batches, net = small_batches(device), small_net(device)
    optimizer = optim.Adam(net.parameters(), 1e-2)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    found = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step(loss.detach())
        found += [loss.item(), optimizer.param_groups[0]["lr"]]
    return found + state_of(net)


@case
def lbfgs_with_a_closure(device):
    net, (x, y) = small_net(device), small_batches(device, 1)[0]
    optimizer = optim.LBFGS(net.parameters(), 0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(3)] + state_of(net)


@case
def clipping_by_norm_and_by_value(device):
    batches, net = small_batches(device), small_net(device)
    norms = []

    def clip():
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.5))
        nn.utils.clip_grad_value_(net.parameters(), 0.1)

    found = train(
        net, optim.Adam(net.parameters(), 1e-2), _loss_of(net), batches, after_backward=clip
    )
    return [*found, *norms, nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type=float("inf"))]


@case
def gradient_accumulation(device):
    batches, net = small_batches(device, 12), small_net(device)
    optimizer = optim.AdamW(net.parameters(), 1e-2)
    losses = []
    for k, (x, y) in enumerate(batches):
        loss = F.cross_entropy(net(x), y) / 4
        loss.backward()
        losses.append(loss.item())
        if k % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=k % 8 == 3)
    return losses + state_of(net, optimizer)


@case
def optimizer_made_before_the_move(device):
    batches = small_batches(device)
    net = small_net("cpu")
    weight = net[0].weight
    optimizer = optim.Adam(net.parameters(), 1e-2)
    net.to(device)
    assert net[0].weight is weight
    return train(net, optimizer, _loss_of(net), batches)


@case
def optimizer_used_before_the_move(device):
    batches = small_batches(device)
    net = small_net("cpu")
    optimizer = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    first = train(net, optimizer, _loss_of(net), [(x.cpu(), y.cpu()) for x, y in batches[:2]])
    saved = copy.deepcopy(optimizer.state_dict())
    net.to(device)
    optimizer = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    optimizer.load_state_dict(saved)
    return first + train(net, optimizer, _loss_of(net), batches[2:])


@case
def groups_freezing_and_added_parameters(device):
    batches, net = small_batches(device), small_net(device)
    net[0].bias.requires_grad_(False)
    optimizer = optim.AdamW(
        [{"params": [net[0].weight], "lr": 1e-3}, {"params": net[2].parameters()}], 1e-2
    )
    found = train(net, optimizer, _loss_of(net), batches[:5])
    net[0].bias.requires_grad_(True)
    optimizer.add_param_group({"params": [net[0].bias], "lr": 0.1})
    return found + train(net, optimizer, _loss_of(net), batches[5:])


@case
def averaged_weights(device):
    batches, net = small_batches(device), small_net(device)
    swa = optim.swa_utils.AveragedModel(net)
    ema = optim.swa_utils.AveragedModel(net, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def update():
        swa.update_parameters(net)
        ema.update_parameters(net)

    found = train(
        net, optim.SGD(net.parameters(), 0.1), _loss_of(net), batches, after_backward=update
    )
    return found + state_of(swa, ema)


@case
def exponential_average_written_by_hand(device):
    batches, net = small_batches(device), small_net(device)
    shadow = copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def update():
        for slow, fast in zip(shadow.parameters(), net.parameters(), strict=True):
            slow.mul_(0.9).add_(fast, alpha=0.1)

    found = train(net, optim.Adam(net.parameters()), _loss_of(net), batches, after_backward=update)
    return found + state_of(shadow)


@case
def gradient_descent_written_by_hand(device):
    w = torch.randn(5, 1, device="cpu").to(device).requires_grad_()
    b = torch.zeros(1, device=device, requires_grad=True)
    x = torch.randn(64, 5).to(device)
    y = x @ torch.tensor([[1.0], [2.0], [-1.0], [0.5], [3.0]]).to(device) + 0.3
    losses = []
    for _ in range(12):
        loss = ((x @ w + b - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            b -= 0.1 * b.grad
        w.grad.zero_()
        b.grad = None
        losses.append(loss.item())
    return [*losses, w, b]


@case
def weight_and_spectral_norm(device):
    net = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(12, 16)), nn.ReLU(), nn.Linear(16, 4)
    ).to(device)
    return train(net, optim.Adam(net.parameters(), 1e-2), _loss_of(net), small_batches(device, 5))


@case
def double_precision_throughout(device):
    net = small_net("cpu").double().to(device)
    batches = [(x.double(), y) for x, y in small_batches(device)]
    return train(net, optim.Adam(net.parameters(), 1e-2), _loss_of(net), batches)


@case
def half_precision_weights(device):
    net = small_net("cpu").bfloat16().to(device)
    batches = [(x.bfloat16(), y) for x, y in small_batches(device, 5)]
    return train(net, optim.SGD(net.parameters(), 1e-2), _loss_of(net), batches)
