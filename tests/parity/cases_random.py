"""Random numbers made on the device: dropout, sampling, reparametrisation, own generators."""

import torch
import torch.nn.functional as F
from cases import case, generator_of, on_device, seed, state_of, train
from torch import nn


@case
def factories_and_fillers(device):
    with on_device(device):
        x = torch.empty(40, device=device)
        found = [
            torch.rand(3, 5, device=device), torch.randn(3, 5, device=device),
            torch.randn(50, device=device), torch.randint(0, 9, (20,), device=device),
            torch.randperm(20, device=device), torch.rand_like(x), torch.randn_like(x),
            torch.bernoulli(torch.full((30,), 0.3, device=device)),
            torch.multinomial(torch.arange(1.0, 9.0, device=device), 5),
            torch.normal(0.0, 2.0, (12,), device=device), torch.normal(x.zero_(), 1.0),
            torch.multinomial(torch.ones(4, 6, device=device), 10, replacement=True),
            x.uniform_(-1, 1).clone(), x.normal_(1, 2).clone(), x.exponential_().clone(),
            x.bernoulli_(0.4).clone(), x.geometric_(0.3).clone(), x.log_normal_().clone(),
            x.cauchy_().clone(), x.random_(0, 50).clone(),
            torch.poisson(torch.full((20,), 4.0, device=device)),
            torch.rand(7, dtype=torch.float64, device=device),
            torch.randn(3, dtype=torch.complex64, device=device), torch.randint_like(x, 5),
        ]  # fmt: skip
    return [*found, torch.rand(2)]


@case
def host_and_device_numbers_are_apart(device):
    found = [torch.rand(3)]
    with on_device(device):
        found.append(torch.rand(3, device=device))
    found.append(torch.rand(3))
    seed(7)
    with on_device(device):
        found.append(torch.randn(3, device=device))
        found.append(torch.rand(3, device=device))
    return [*found, torch.rand(3)]


@case
def dropout_in_training_and_evaluation(device):
    net = nn.Sequential(
        nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 32), nn.AlphaDropout(0.1),
        nn.Linear(32, 32), nn.Dropout(0.5, inplace=True), nn.Linear(32, 4),
    ).to(device)  # fmt: skip
    x, y = torch.randn(16, 12).to(device), torch.randint(0, 4, (16,)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    with on_device(device):
        found = train(net, optimizer, lambda x, y: F.cross_entropy(net(x), y), [(x, y)] * 6)
        net.eval()
        found.append(net(x))
    return found


@case
def dropout_of_channels_and_by_function(device):
    x = torch.randn(4, 6, 5, 5).to(device).requires_grad_()
    with on_device(device):
        found = [
            F.dropout2d(x, 0.4), F.dropout(x, 0.2), F.feature_alpha_dropout(x, 0.3),
            F.dropout1d(x[0, 0], 0.5), F.dropout(x, 0.0), F.dropout(x, 1.0),
            F.dropout(x, 0.5, training=False), F.rrelu(x, training=True),
        ]  # fmt: skip
        sum(item.sum() for item in found).backward()
    return [*found, x.grad]


@case
def variational_autoencoder(device):
    encode = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8))
    decode = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 16))
    net = nn.ModuleList([encode, decode]).to(device)
    x = torch.rand(12, 16).to(device)

    def loss_of(x):
        mean, logs = encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * logs).exp()
        rebuilt = F.binary_cross_entropy_with_logits(decode(z), x, reduction="sum")
        return rebuilt - 0.5 * torch.sum(1 + logs - mean.pow(2) - logs.exp())

    with on_device(device):
        found = train(net, torch.optim.Adam(net.parameters(), 1e-2), loss_of, [(x,)] * 8)
        found.append(decode(torch.randn(3, 4, device=device)).sigmoid())
    return found


@case
def transformer_with_dropout(device):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    x = torch.randn(3, 6, 16).to(device)
    with on_device(device):
        return train(
            net, torch.optim.AdamW(net.parameters(), 1e-3),
            lambda x: (net(x) - x).pow(2).mean(), [(x,)] * 4,
        )  # fmt: skip


@case
def recurrent_with_dropout_between_layers(device):
    found = []
    for kind in (nn.LSTM, nn.GRU):
        net = kind(6, 8, 2, dropout=0.3).to(device)
        x = torch.randn(5, 3, 6).to(device)
        with on_device(device):
            optimizer = torch.optim.Adam(net.parameters(), 1e-2)
            found += train(net, optimizer, lambda x, net=net: net(x)[0].pow(2).mean(), [(x,)] * 4)
    return found


@case
def attention_with_dropout(device):
    q, k, v = (torch.randn(2, 2, 6, 8).to(device).requires_grad_() for _ in range(3))
    with on_device(device):
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
        y.pow(2).sum().backward()
    return [y, q.grad, k.grad, v.grad]


@case
def sampling_from_a_model(device):
    net = nn.Linear(8, 12).to(device)
    table = nn.Embedding(12, 8).to(device)
    token, found = torch.zeros(1, dtype=torch.long, device=device), []
    with torch.no_grad(), on_device(device):
        for _ in range(10):
            p = (net(table(token)) / 0.8).softmax(-1)
            token = torch.multinomial(p, 1)[:, 0]
            found.append(token.item())
    return found


@case
def distributions(device):
    from torch.distributions import Bernoulli, Beta, Categorical, Gamma, Normal, kl_divergence

    mean = torch.zeros(6, device=device)
    p = torch.tensor([0.2, 0.5, 0.3]).to(device)
    with on_device(device):
        normal = Normal(mean, mean + 2)
        drawn = normal.rsample((3,))
        return [
            drawn, normal.log_prob(drawn), Categorical(p).sample((10,)),
            Bernoulli(p).sample((4,)), Beta(p + 1, p + 2).sample(), Gamma(p + 1, p).rsample(),
            F.gumbel_softmax(p.log(), hard=True),
            kl_divergence(normal, Normal(mean + 1, mean + 1)), Categorical(logits=p).entropy(),
        ]  # fmt: skip


@case
def initialisation_on_the_device(device):
    with on_device(device):
        net = nn.Sequential(
            nn.Linear(6, 8, device=device), nn.Conv2d(2, 3, 3, device=device),
            nn.LSTM(4, 5, device=device), nn.Embedding(5, 3, device=device),
            nn.MultiheadAttention(8, 2, device=device), nn.BatchNorm1d(4, device=device),
        )  # fmt: skip
        weight = net[0].weight
        nn.init.xavier_uniform_(weight)
        nn.init.kaiming_normal_(net[1].weight)
        nn.init.trunc_normal_(net[3].weight, std=0.02)
        nn.init.zeros_(net[0].bias)
        nn.init.orthogonal_(net[4].in_proj_weight)
    return state_of(net)


@case
def a_generator_of_ones_own(device):
    generator = generator_of(device).manual_seed(5)
    found = [torch.rand(4, generator=generator, device=device)]
    state = generator.get_state()
    found.append(torch.randn(4, generator=generator, device=device))
    generator.set_state(state)
    found.append(torch.randn(4, generator=generator, device=device))
    x = torch.empty(5, device=device).uniform_(generator=generator)
    found += [x, torch.randperm(6, generator=generator, device=device), generator.initial_seed()]
    return found


@case
def reinforcement_with_sampled_actions(device):
    net = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    found = []
    with on_device(device):
        for k in range(5):
            state = torch.tensor([k / 5, 1.0, -k / 3], device=device)
            chosen, gains = [], []
            for _ in range(4):
                choice = torch.distributions.Categorical(logits=net(state))
                action = choice.sample()
                chosen.append(choice.log_prob(action))
                gains.append(float(action.item()))
                state = state * 0.9 + action.item() * 0.1
            loss = -(torch.stack(chosen) * torch.tensor(gains, device=device)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found += [loss.item(), *gains]
    return found + state_of(net)
