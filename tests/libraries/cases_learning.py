"""Libraries for ways of learning: ignite, captum, opacus, graphs, spikes, reinforcement."""

import pictures  # noqa: F401 - before what imports torchvision  # isort: skip

import warnings

import numpy as np
import torch
from cases import case, on_device, seed, state_of, train
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

STEPS = 3


def digits(count=48):
    """Digits as rows of numbers, with labels."""
    found = load_digits()
    rows = torch.tensor(found.data[:count], dtype=torch.float32) / 16
    return rows, torch.tensor(found.target[:count])


def network(device):
    """A net with a layer between."""
    seed(1)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).to(device)


@case
def ignite_engines(device):
    """A trainer and an evaluator with metrics, handlers and a checkpoint."""
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.handlers import EarlyStopping, global_step_from_engine
    from ignite.metrics import Accuracy, ConfusionMatrix, Loss, Precision

    net = network(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(net, optimizer, loss, device=device)
    precision = Precision(average=False)
    metrics = {"accuracy": Accuracy(), "loss": Loss(loss), "confusion": ConfusionMatrix(10)}
    metrics["precision"] = precision
    evaluator = create_supervised_evaluator(net, metrics=metrics, device=device)
    evaluator.add_event_handler(
        Events.COMPLETED, EarlyStopping(3, lambda e: -e.state.metrics["loss"], trainer)
    )
    loader = DataLoader(TensorDataset(*digits()), 8)
    told = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: told.append(e.state.output))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(loader))
    assert global_step_from_engine(trainer)
    trainer.run(loader, max_epochs=2)
    found = evaluator.state.metrics
    return [*told, *(found[name] for name in sorted(found)), *state_of(net)]


@case
def captum_attributions(device):
    """Which inputs a net's answer hangs on, by six methods."""
    from captum.attr import (
        DeepLift,
        FeatureAblation,
        IntegratedGradients,
        LayerConductance,
        Occlusion,
        Saliency,
    )

    net = network(device).eval()
    x, y = (t[:4].to(device) for t in digits())
    whole, error = IntegratedGradients(net).attribute(
        x, target=y, n_steps=8, return_convergence_delta=True
    )
    return [
        whole, error, Saliency(net).attribute(x, target=y), DeepLift(net).attribute(x, target=y),
        FeatureAblation(net).attribute(x, target=y),
        Occlusion(net).attribute(x, target=y, sliding_window_shapes=(8,), strides=(8,)),
        LayerConductance(net, net[0]).attribute(x, target=y, n_steps=8),
    ]  # fmt: skip


@case
def opacus_private_training(device):
    """Gradients of single examples, clipped, with noise of the device's own."""
    from opacus import PrivacyEngine

    net = network(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(TensorDataset(*digits()), 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, optimizer, loader = PrivacyEngine().make_private(
            module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0,
            max_grad_norm=1.0, poisson_sampling=False,
        )  # fmt: skip
        told = []
        seed(2)
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(net(x.to(device)), y.to(device))
            loss.backward()
            with on_device(device):
                optimizer.step()
            told.append(loss)
    return [*told, *state_of(net)]


@case
def torch_geometric_graphs(device):
    """Convolution, attention and samples over graphs; batches of graphs."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader as Graphs
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool
    from torch_geometric.utils import degree, to_dense_adj

    class Net(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.first, self.second = kind(4, 8), kind(8, 3)

        def forward(self, graph):
            x = self.first(graph.x, graph.edge_index).relu()
            return global_mean_pool(self.second(x, graph.edge_index), graph.batch, 3)

    told = []
    for kind in (GCNConv, GATConv, SAGEConv):
        seed(3)
        graphs = [
            Data(torch.randn(6, 4), torch.randint(0, 6, (2, 14)), y=torch.tensor([k % 3]))
            for k in range(6)
        ]
        net = Net(kind).to(device)
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        batches = [(graph.to(device),) for graph in Graphs(graphs, batch_size=3)]
        told += train(
            net, optimizer, lambda graph, net=net: cross_entropy(net(graph), graph.y), batches
        )
    (graph,) = batches[0]
    return [*told, degree(graph.edge_index[0]), to_dense_adj(graph.edge_index, graph.batch)]


@case
def snntorch_spikes(device):
    """Neurons that leak and fire, trained through time."""
    import snntorch
    from snntorch import spikegen, surrogate

    seed(4)
    first, second = nn.Linear(64, 16).to(device), nn.Linear(16, 10).to(device)
    hidden = snntorch.Leaky(beta=0.9, spike_grad=surrogate.fast_sigmoid(slope=25)).to(device)
    last = snntorch.Synaptic(alpha=0.8, beta=0.9, learn_beta=True).to(device)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], 1e-2)
    x, y = (t[:8].to(device) for t in digits())
    with on_device(device):
        trains = spikegen.rate(x, num_steps=5)
    told = [trains, spikegen.latency(x, num_steps=5, normalize=True, linear=True)]
    for _ in range(STEPS):
        inner, (current, outer) = hidden.init_leaky(), last.init_synaptic()
        total = 0
        for step in trains:
            spikes, inner = hidden(first(step), inner)
            out, current, outer = last(second(spikes), current, outer)
            total = total + cross_entropy(outer, y)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        told += [total.detach(), out.detach()]
    return told


@case
def stable_baselines_agents(device):
    """Two agents learn a small world, and act."""
    import gymnasium
    from stable_baselines3 import A2C, DQN

    class Walk(gymnasium.Env):
        """Left or right along a line, towards its end."""

        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            """To the middle."""
            super().reset(seed=seed)
            self.place, self.steps = 0.0, 0
            return self._seen(), {}

        def _seen(self):
            return np.array([self.place, self.place**2, self.steps / 20], np.float32)

        def step(self, action):
            """One step of a tenth."""
            self.place, self.steps = self.place + (0.1 if action else -0.1), self.steps + 1
            return self._seen(), self.place, abs(self.place) >= 0.9, self.steps >= 20, {}

    told = []
    for make, options in ((A2C, {"n_steps": 5}), (DQN, {"learning_starts": 8, "batch_size": 4})):
        agent = make("MlpPolicy", Walk(), device=device, policy_kwargs={"net_arch": [8]}, **options)
        agent.set_random_seed(6)
        seed(6)
        with on_device(device):
            agent.learn(24)
        assert agent.device.type == device
        told += state_of(agent.policy)
        told += [int(agent.predict(np.full(3, x, np.float32), deterministic=True)[0])
                 for x in (-0.5, 0.0, 0.5)]  # fmt: skip
    return told


@case
def tensordict_batches(device):
    """Dictionaries of tensors: moved, indexed, stacked, through modules, in memory and back."""
    from tensordict import TensorDict, from_module
    from tensordict.nn import TensorDictModule

    x, y = digits(12)
    batch = TensorDict({"x": x, "deep": {"y": y}}, batch_size=[12]).to(device)
    assert batch.device.type == device
    net = network(device)
    module = TensorDictModule(net, in_keys=["x"], out_keys=["logits"])
    out = module(batch[2:8])
    twice = torch.stack([out, out], 0).reshape(-1)
    parameters = from_module(net)
    with (parameters * 0.5).to_module(net):
        halved = net(batch["x"])
    host = twice.detach().cpu()
    return [
        out["logits"], twice["deep", "y"], halved, host["logits"], parameters["0", "weight"],
        batch.apply(lambda t: t * 2)["x"],
    ]  # fmt: skip
