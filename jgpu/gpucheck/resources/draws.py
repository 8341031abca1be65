"""Draws random numbers of every kind on a device, for a comparison of two processes.

    python draws.py HOW [FILE]

By name a digest of what was drawn: each kind twice from the default generator and twice from one of
its own, all seeded alike, and the generators' states in between.
"""

from collections.abc import Callable

import place
import torch
import torch.nn.functional as F

SEED = 20_261
#: more than one block of any GPU draws, and not a multiple of what a thread draws at once
COUNT = 100_003


def default_kinds(device: torch.device) -> dict[str, Callable[..., torch.Tensor]]:
    """Kinds that draw from the default generator of the device, or can."""
    weights = torch.linspace(0.01, 0.99, 997, device=device)
    image = torch.linspace(-1, 1, 2 * 30 * 9, device=device).view(2, 30, 3, 3)
    return {
        "rand": lambda **g: torch.rand(COUNT, device=device, **g),
        "rand half": lambda **g: torch.rand(301, 7, device=device, dtype=torch.float16, **g),
        "randn": lambda **g: torch.randn(COUNT, device=device, **g),
        "randn double": lambda **g: torch.randn(33, 5, device=device, dtype=torch.float64, **g),
        "randint": lambda **g: torch.randint(0, 1000, (COUNT,), device=device, **g),
        "randint wide": lambda **g: torch.randint(-(1 << 40), 1 << 40, (999,), device=device, **g),
        "randperm": lambda **g: torch.randperm(3001, device=device, **g),
        "randperm many": lambda **g: torch.randperm(70_001, device=device, **g),
        "uniform_": lambda **g: torch.empty(COUNT, device=device).uniform_(-2, 5, **g),
        "normal_": lambda **g: torch.empty(COUNT, device=device).normal_(3, 0.5, **g),
        "exponential_": lambda **g: torch.empty(COUNT, device=device).exponential_(0.7, **g),
        "bernoulli_": lambda **g: torch.empty(COUNT, device=device).bernoulli_(0.3, **g),
        "bernoulli": lambda **g: torch.bernoulli(weights, **g),
        "multinomial": lambda **g: torch.multinomial(weights, 50, **g),
        "multinomial again": lambda **g: torch.multinomial(weights, 2000, replacement=True, **g),
        "poisson": lambda **g: torch.poisson(weights, **g),
        "dropout": lambda: F.dropout(weights, 0.4),
        "dropout2d": lambda: F.dropout2d(image, 0.4),
        "alpha_dropout": lambda: F.alpha_dropout(weights, 0.4, training=True),
        "rand_like": lambda: torch.rand_like(weights),
        "linear": lambda: torch.nn.Linear(17, 5, device=device).weight.detach(),
    }


def drawn(device: torch.device) -> dict[str, torch.Tensor]:
    """Everything, by name."""
    found = {}
    place.seed(SEED)
    kinds = default_kinds(device)
    for name, draw in kinds.items():
        found[f"{name}, first"], found[f"{name}, second"] = draw().cpu(), draw().cpu()
    found["state"] = kept = place.state()
    found["after the state"] = torch.randn(1000, device=device).cpu()
    place.set_state(kept)
    found["after the state, again"] = torch.randn(1000, device=device).cpu()
    own = place.generator(device, SEED + 1)
    for name, draw in kinds.items():
        if name in ("dropout", "dropout2d", "alpha_dropout", "rand_like", "linear"):
            continue  # they take no generator
        for turn in ("first", "second"):
            found[f"own generator: {name}, {turn}"] = draw(generator=own).cpu()
    found["own generator: state"] = own.get_state()
    return found


def main(device: torch.device, file: str = "") -> dict[str, str]:
    """Digests by name; what was drawn goes to the file, where one is named."""
    found = drawn(device)
    if file:
        torch.save(found, file)
    return {name: place.digest(value) for name, value in found.items()}


if __name__ == "__main__":
    place.serve(main)
