"""Libraries for probability: GPyTorch, BoTorch, Pyro, Zuko."""

import warnings

import gpytorch
import pyro
import pyro.distributions as dist
import torch
import zuko
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from cases import case, on_device, seed, train
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from pyro.infer import SVI, Predictive, Trace_ELBO

STEPS = 6


def curve(device, count=24):
    """Points of a sine with noise, drawn on the host."""
    x = torch.linspace(0, 1, count)
    seed(1)
    return x.to(device), (torch.sin(6 * x) + 0.1 * torch.randn(count)).to(device)


class Exact(gpytorch.models.ExactGP):
    """The model of GPyTorch's first tutorial."""

    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        """The prior."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@case
def gpytorch_regression(device):
    """Exact inference: the data's likelihood is made the most of, then points are predicted."""
    x, y = curve(device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    model = Exact(x, y, likelihood).to(device).train()
    likelihood.train()
    fit = ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    told = train(model, optimizer, lambda x, y: -fit(model(x), y), [(x, y)] * STEPS)
    model.eval()
    likelihood.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        seen = likelihood(model(torch.linspace(0, 1, 9, device=device)))
    return [*told, seen.mean, seen.variance, *seen.confidence_region()]


class Sparse(gpytorch.models.ApproximateGP):
    """A variational model with a few inducing points."""

    def __init__(self, points):
        strategy = gpytorch.variational.VariationalStrategy(
            self, points, gpytorch.variational.CholeskyVariationalDistribution(points.size(0))
        )
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

    forward = Exact.forward


@case
def gpytorch_variational(device):
    """A variational model trained by batches."""
    x, y = curve(device)
    seed(2)
    with on_device(device):
        model = Sparse(x[::4].clone()).to(device).train()
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device).train()
        bound = VariationalELBO(likelihood, model, num_data=y.numel())
        optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], 0.05)
        return train(
            model, optimizer, lambda x, y: -bound(model(x), y),
            list(zip(x.split(8), y.split(8), strict=True)),
        )  # fmt: skip


@case
def botorch_optimisation(device):
    """A fitted model, and the next point by two acquisition functions."""
    x, y = curve(device, 12)
    x, y = x[:, None].double(), y[:, None].double()
    seed(3)
    with on_device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SingleTaskGP(x, y).to(device)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        ucb = UpperConfidenceBound(model, beta=0.2)
        grid = torch.linspace(0, 1, 7, device=device, dtype=torch.double)[:, None, None]
        ei = LogExpectedImprovement(model, best_f=y.max())
        start = grid[2:4].clone()
        bounds = torch.tensor([[0.0], [1.0]], device=device, dtype=torch.double)
        found, value = optimize_acqf(
            ei, bounds, q=1, num_restarts=2, batch_initial_conditions=start
        )
    return [ucb(grid).detach(), ei(grid).detach(), found, value]


@case
def pyro_variational_regression(device):
    """Stochastic variational inference, and draws from the posterior."""
    x, y = curve(device)
    pyro.clear_param_store()

    def model(x, y=None):
        zero, one = torch.zeros((), device=device), torch.ones((), device=device)
        slope = pyro.sample("slope", dist.Normal(zero, 5 * one))
        offset = pyro.sample("offset", dist.Normal(zero, 5 * one))
        spread = pyro.sample("spread", dist.LogNormal(zero, one))
        with pyro.plate("points", len(x)):
            return pyro.sample("y", dist.Normal(slope * x + offset, spread), obs=y)

    guide = pyro.infer.autoguide.AutoDiagonalNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    pyro.set_rng_seed(4)
    seed(4)
    with on_device(device):
        told = [svi.step(x, y) for _ in range(STEPS)]
        drawn = Predictive(model, guide=guide, num_samples=3)(x)
    return [*told, *(drawn[name] for name in sorted(drawn)), *guide.parameters()]


@case
def zuko_flow(device):
    """A neural spline flow learns two moons, and draws."""
    from sklearn.datasets import make_moons

    points = torch.tensor(make_moons(32, noise=0.05, random_state=0)[0], dtype=torch.float32)
    seed(5)
    flow = zuko.flows.NSF(features=2, transforms=2, hidden_features=(16, 16)).to(device)
    optimizer = torch.optim.Adam(flow.parameters(), 1e-3)
    told = train(
        flow, optimizer, lambda x: -flow().log_prob(x).mean(), [(points.to(device),)] * STEPS
    )
    with on_device(device):
        return [*told, flow().sample((4,)).detach()]
