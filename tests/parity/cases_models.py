"""Models as they are taught and used: every loss and every final weight, device against native."""

import torch
import torch.nn.functional as F
from cases import case, state_of, train
from torch import nn


def _labelled(shape, classes, device, count=6):
    batches = []
    for _ in range(count):
        x = torch.randn(shape)
        y = torch.randint(0, classes, (shape[0],))
        batches.append((x.to(device), y.to(device)))
    return batches


def _classify(net):
    return lambda x, y: F.cross_entropy(net(x), y)


def _trained(net, shape, device, optimizer=None, classes=10, steps=6):
    batches = _labelled(shape, classes, device, steps)
    net.to(device)
    optimizer = (optimizer or (lambda p: torch.optim.Adam(p, 1e-3)))(net.parameters())
    return train(net, optimizer, _classify(net), batches)


@case
def mlp_sgd(device):
    net = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    )
    return _trained(net, (32, 20), device, lambda p: torch.optim.SGD(p, 0.1))


@case
def mlp_with_many_activations(device):
    layers = []
    for activation in (
        nn.GELU(), nn.SiLU(), nn.ELU(), nn.LeakyReLU(0.1), nn.PReLU(), nn.Softplus(),
        nn.Hardtanh(), nn.Sigmoid(), nn.LogSigmoid(), nn.Mish(), nn.SELU(), nn.Hardswish(),
        nn.GELU("tanh"), nn.Softsign(), nn.CELU(), nn.ReLU6(), nn.Softmax(-1), nn.GLU(),
        nn.Tanhshrink(),
    ):  # fmt: skip
        layers += [nn.LazyLinear(24), activation]
    net = nn.Sequential(*layers, nn.LazyLinear(10))
    net(torch.zeros(2, 20))
    return _trained(net, (16, 20), device, steps=4)


@case
def mlp_with_layer_norm(device):
    net = nn.Sequential(nn.Linear(20, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 10))
    return _trained(net, (32, 20), device, lambda p: torch.optim.AdamW(p, 1e-2))


@case
def mlp_with_rms_norm(device):
    net = nn.Sequential(nn.Linear(20, 48), nn.RMSNorm(48), nn.SiLU(), nn.Linear(48, 10))
    return _trained(net, (32, 20), device)


@case
def cnn(device):
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 4, 10),
    )  # fmt: skip
    return _trained(net, (16, 1, 8, 8), device)


@case
def cnn_with_channels_last(device):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(32, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    batches = [
        (x.to(memory_format=torch.channels_last), y)
        for x, y in _labelled((8, 3, 16, 16), 10, device, 4)
    ]
    net.to(device)
    return train(net, torch.optim.SGD(net.parameters(), 0.1), _classify(net), batches)


@case
def cnn_depthwise_dilated_grouped(device):
    net = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=4, padding=1), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, dilation=2, padding=2, bias=False), nn.InstanceNorm2d(8, affine=True),
        nn.AvgPool2d(2), nn.Conv2d(8, 16, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    return _trained(net, (8, 4, 12, 12), device, steps=4)


@case
def convolutions_in_one_and_three_dimensions(device):
    one = nn.Sequential(
        nn.Conv1d(3, 8, 5, padding=2, padding_mode="circular"), nn.BatchNorm1d(8), nn.ReLU(),
        nn.MaxPool1d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    three = nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip
    return _trained(one, (8, 3, 16), device, steps=4) + _trained(
        three, (4, 2, 4, 4, 4), device, steps=4
    )


@case
def batch_norm_stack_train_and_eval(device):
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 32),
        nn.BatchNorm1d(32, momentum=None), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    found = _trained(net, (16, 1, 8, 8), device, lambda p: torch.optim.SGD(p, 0.05, momentum=0.9))
    net.eval()
    x = torch.randn(16, 1, 8, 8).to(device)
    with torch.no_grad():
        found.append(net(x))
    with torch.inference_mode():
        found.append(net(x).argmax(1).sum().item())
    net.train()
    return [*found, net(x), *state_of(net)]


@case
def residual_network(device):
    class Block(nn.Module):
        def __init__(self, width, stride=1):
            super().__init__()
            self.a = nn.Conv2d(width, width, 3, stride, 1, bias=False)
            self.n = nn.BatchNorm2d(width)
            self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.m = nn.BatchNorm2d(width)
            self.short = nn.Conv2d(width, width, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x):
            y = F.relu(self.n(self.a(x)), inplace=True)
            return F.relu(self.m(self.b(y)) + self.short(x))

    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), Block(8), Block(8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 10),
    )  # fmt: skip
    return _trained(
        net, (8, 3, 8, 8), device, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)
    )


@case
def autoencoder_with_transposed_convolutions(device):
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2), nn.Sigmoid(),
    ).to(device)  # fmt: skip
    batches = [(torch.rand(8, 1, 8, 8).to(device),) for _ in range(5)]
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    return train(net, optimizer, lambda x: F.binary_cross_entropy(net(x), x), batches)


@case
def upsampling_and_padding(device):
    net = nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=2), nn.ReLU(),
        nn.ReplicationPad2d(1), nn.Conv2d(4, 4, 3), nn.PixelShuffle(2),
        nn.Upsample(size=(6, 6), mode="bilinear", align_corners=False), nn.ZeroPad2d(1),
        nn.ConstantPad2d(1, 0.5), nn.Conv2d(1, 2, 3),
    ).to(device)  # fmt: skip
    batches = [(torch.rand(4, 2, 6, 6).to(device),) for _ in range(4)]
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    return train(net, optimizer, lambda x: net(x).pow(2).mean(), batches)


class _Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.core = kind(8, 16, **options)
        width = 32 if options.get("bidirectional") else 16
        self.out = nn.Linear(options.get("proj_size", width), 5)

    def forward(self, x):
        return self.out(self.core(x)[0][:, -1])


def _recurrent(name, kind, **options):
    def run(device):
        net = _Recurrent(kind, batch_first=True, **options)
        return _trained(net, (6, 7, 8), device, classes=5)

    run.__name__ = name
    case(run)


_recurrent("lstm", nn.LSTM)
_recurrent("lstm_of_two_layers", nn.LSTM, num_layers=2)
_recurrent("lstm_in_both_directions", nn.LSTM, bidirectional=True)
_recurrent("lstm_with_projection", nn.LSTM, proj_size=6)
_recurrent("lstm_without_bias", nn.LSTM, bias=False)
_recurrent("gru", nn.GRU)
_recurrent("gru_of_two_layers_in_both_directions", nn.GRU, num_layers=2, bidirectional=True)
_recurrent("rnn_tanh", nn.RNN)
_recurrent("rnn_relu", nn.RNN, nonlinearity="relu")


@case
def lstm_with_state_carried_and_evaluated(device):
    core, out = nn.LSTM(4, 12), nn.Linear(12, 4)
    net = nn.ModuleList([core, out]).to(device)
    series = torch.randn(40, 3, 4).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    state, losses = None, []
    for at in range(0, 30, 10):
        optimizer.zero_grad()
        y, state = core(series[at : at + 10], state)
        loss = F.mse_loss(out(y), series[at + 1 : at + 11])
        loss.backward()
        optimizer.step()
        state = tuple(part.detach() for part in state)
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        y, state = core(series[:5])
    return [*losses, y, *state, *state_of(net)]


@case
def lstm_with_gradients_and_without_in_either_mode(device):
    core = nn.LSTM(4, 12).to(device)
    series, shown = torch.randn(5, 3, 4).to(device), []
    for training in (True, False):
        core.train(training)
        for recorded in (True, False, True):  # the kernel takes another algorithm without
            with torch.set_grad_enabled(recorded):
                y, state = core(series)
            shown += [y.detach(), *(part.detach() for part in state)]
            if recorded and training:  # by cuDNN there is no backward in evaluation
                y.sum().backward()
                shown += [weight.grad.clone() for weight in core.parameters()]
    return shown


@case
def packed_sequences(device):
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    core = nn.GRU(4, 8, batch_first=True).to(device)
    out = nn.Linear(8, 3).to(device)
    net = nn.ModuleList([core, out])
    x, lengths = torch.randn(4, 6, 4).to(device), torch.tensor([6, 3, 5, 2])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss_of(x):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(core(packed)[0], batch_first=True)
        return out(y).pow(2).mean()

    return train(net, optimizer, loss_of, [(x,)] * 4)


@case
def cells_in_a_loop(device):
    cells = nn.ModuleList([nn.LSTMCell(4, 8), nn.GRUCell(8, 8), nn.RNNCell(8, 4)]).to(device)
    x = torch.randn(5, 3, 4).to(device)

    def loss_of(x):
        lstm = (torch.zeros(3, 8, device=device), torch.zeros(3, 8, device=device))
        gru = torch.zeros(3, 8, device=device)
        rnn = torch.zeros(3, 4, device=device)
        total = 0.0
        for step in x:
            lstm = cells[0](step, lstm)
            gru = cells[1](lstm[0], gru)
            rnn = cells[2](gru, rnn)
            total = total + (rnn - step).pow(2).mean()
        return total

    return train(cells, torch.optim.Adam(cells.parameters(), 1e-2), loss_of, [(x,)] * 4)


@case
def gan_with_two_optimizers(device):
    make = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    judge = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
    first = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    second = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    losses = []
    for _ in range(5):
        real, noise = torch.randn(8, 2).to(device), torch.randn(8, 4).to(device)
        ones, zeros = torch.ones(8, 1, device=device), torch.zeros(8, 1, device=device)
        fake = make(noise)
        second.zero_grad()
        loss = F.binary_cross_entropy_with_logits(judge(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
        loss.backward()
        second.step()
        first.zero_grad()
        other = F.binary_cross_entropy_with_logits(judge(fake), ones)
        other.backward()
        first.step()
        losses += [loss.item(), other.item()]
    return losses + state_of(make, judge, first, second)


@case
def losses_of_all_kinds(device):
    x = torch.randn(12, 6).to(device).requires_grad_()
    y, labels = torch.rand(12, 6).to(device), torch.randint(0, 6, (12,)).to(device)
    weight = torch.rand(6).to(device)
    sign = torch.where(torch.rand(12) > 0.5, 1.0, -1.0).to(device)
    logs = F.log_softmax(x, -1)
    found = [
        F.cross_entropy(x, labels, weight=weight, label_smoothing=0.1),
        F.cross_entropy(x, labels.clone().fill_(2), ignore_index=2, reduction="sum"),
        F.cross_entropy(x, y.softmax(-1)), F.nll_loss(logs, labels, reduction="none").mean(),
        F.l1_loss(x, y), F.mse_loss(x, y, reduction="sum"), F.smooth_l1_loss(x, y),
        F.huber_loss(x, y, delta=0.5),
        F.binary_cross_entropy_with_logits(x, y, pos_weight=weight),
        F.kl_div(logs, y.softmax(-1), reduction="batchmean"), F.soft_margin_loss(x[:, 0], sign),
        F.margin_ranking_loss(x[:, 0], x[:, 1], sign), F.hinge_embedding_loss(x[:, 2], sign),
        F.cosine_embedding_loss(x, y, sign), F.triplet_margin_loss(x, y, y.flip(0)),
        F.multi_margin_loss(x, labels), F.poisson_nll_loss(x, y),
        F.gaussian_nll_loss(x, y, y + 0.1), F.multilabel_soft_margin_loss(x, (y > 0.5).float()),
    ]  # fmt: skip
    total = torch.stack(found).sum()
    total.backward()
    return [*found, x.grad]
