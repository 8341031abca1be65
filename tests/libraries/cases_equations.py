"""Libraries for equations and symmetry: torchdiffeq, torchsde, neuraloperator, e3nn, deepinv."""

import pictures  # noqa: F401 - before what imports torchvision  # isort: skip
import deepinv
import torch
import torchdiffeq
import torchsde
from cases import case, on_device, seed, train
from e3nn import nn as symmetric
from e3nn import o3
from neuralop.losses import H1Loss, LpLoss
from neuralop.models import FNO
from torch import nn

STEPS = 3


class Field(nn.Module):
    """dy/dt by a small net."""

    noise_type = "diagonal"
    sde_type = "ito"

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t, y):
        """The drift."""
        return self.net(y**3)

    f = forward

    def g(self, t, y):
        """The diffusion."""
        return 0.1 + 0.1 * torch.sigmoid(y)


@case
def torchdiffeq_spiral(device):
    """Fits a spiral, through the solver and by the adjoint."""
    told = []
    for solve, method in (
        (torchdiffeq.odeint, "dopri5"),
        (torchdiffeq.odeint_adjoint, "dopri5"),
        (torchdiffeq.odeint, "rk4"),
    ):
        seed(1)
        field = Field().to(device)
        start = torch.tensor([[2.0, 0.0]], device=device)
        times = torch.linspace(0.0, 1.0, 6, device=device)
        truth = torch.stack([2 * torch.exp(-times), torch.sin(times)], 1)[:, None]
        optimizer = torch.optim.RMSprop(field.parameters(), 1e-3)
        told += train(
            field, optimizer,
            lambda start, solve=solve, field=field, times=times, truth=truth, method=method: (
                solve(field, start, times, method=method) - truth
            ).abs().mean(),
            [(start,)] * STEPS,
        )  # fmt: skip
    return told


@case
def torchsde_paths(device):
    """Draws paths of a stochastic equation, whose noise is the host's, and learns by them."""
    seed(2)
    field = Field().to(device)
    start = torch.full((4, 2), 0.1, device=device)
    times = torch.linspace(0, 1, 5, device=device)
    optimizer = torch.optim.Adam(field.parameters(), 1e-2)

    def loss(start):
        with on_device(device):
            noise = torchsde.BrownianInterval(0.0, 1.0, size=(4, 2), entropy=3, device=device)
            return torchsde.sdeint(field, start, times, bm=noise, method="euler").pow(2).mean()

    return train(field, optimizer, loss, [(start,)] * STEPS)


@case
def neural_operator(device):
    """A Fourier neural operator learns to smooth."""
    seed(3)
    model = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
    model = model.to(device)
    x = torch.randn(4, 1, 16, 16)
    y = nn.functional.avg_pool2d(x, 3, 1, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loss = LpLoss(d=2, p=2)
    told = train(model, optimizer, lambda x, y: loss(model(x), y), [(x.to(device), y)] * STEPS)
    return [*told, H1Loss(d=2)(model(x.to(device)), y).detach()]


@case
def e3nn_equivariance(device):
    """Spherical harmonics, tensor products, gates, and the same after a turn."""
    seed(4)
    inside, outside = o3.Irreps("4x0e + 2x1o"), o3.Irreps("3x0e + 1x1o + 1x2e")
    product = o3.FullyConnectedTensorProduct(inside, o3.Irreps.spherical_harmonics(2), outside).to(
        device
    )
    gate = symmetric.Gate("2x0e", [torch.tanh], "1x0e", [torch.sigmoid], "1x1o").to(device)
    places = torch.randn(6, 3)
    features = torch.randn(6, inside.dim)
    turn = o3.rand_matrix()
    told = []
    for matrix in (torch.eye(3), turn):
        here = features @ inside.D_from_matrix(matrix).T
        around = o3.spherical_harmonics(
            [0, 1, 2], (places @ matrix.T).to(device), normalize=True, normalization="component"
        )
        told.append(product(here.to(device), around))
    told[0].pow(2).sum().backward()
    gated = gate(torch.randn(5, gate.irreps_in.dim).to(device))
    turned = told[0] @ outside.D_from_matrix(turn).T.to(device)
    assert torch.allclose(turned, told[1], atol=1e-4)
    return [*told, gated, *(p.grad for p in product.parameters())]


@case
def deepinv_restoration(device):
    """Blurred pictures, restored by a few steps of a learned and a variational method."""
    seed(5)
    kernel = deepinv.physics.blur.gaussian_blur(sigma=(1.0, 1.0)).to(device)
    physics = deepinv.physics.Blur(filter=kernel, padding="circular", device=device)
    x = torch.rand(2, 1, 24, 24).to(device)
    y = physics(x)
    fidelity = deepinv.optim.L2()
    prior = deepinv.optim.TVPrior(n_it_max=3)
    step = x
    for _ in range(STEPS):
        step = prior.prox(step - fidelity.grad(step, y, physics), gamma=0.01)
    net = deepinv.models.DnCNN(1, 1, depth=3, nf=8, pretrained=None, device=device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    told = train(net, optimizer, lambda y: (net(y, 0.1) - x).pow(2).mean(), [(y,)] * STEPS)
    return [y, physics.A_adjoint(y), step, deepinv.metric.PSNR()(step, x), *told]
