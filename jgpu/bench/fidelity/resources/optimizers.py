"""PyTorch's database of optimizers: every configuration trains a small net a few steps."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from judging import SEED, compared
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

STEPS = 4
Found = Iterator[tuple[str, str, str]]


@cache
def _entries() -> dict[str, Any]:
    known: list[Any] = optim_db  # whose annotation says an optimizer where it means its class
    return {info.optim_cls.__name__: info for info in known}


def cases() -> Iterator[tuple[str, torch.dtype]]:
    """Every optimizer in single and double precision."""
    for name in _entries():
        for dtype in (torch.float32, torch.float64):
            yield name, dtype


def samples(entry: str, dtype: torch.dtype) -> Iterator[Callable[[], Found]]:
    """For each configuration, the flags `foreach`, `fused` and their like included."""
    info = _entries()[entry]
    for given in _get_optim_inputs_including_global_cliquey_kwargs("cpu", dtype, info):
        yield partial(_compare, info, given, dtype)


def _compare(info: Any, given: Any, dtype: torch.dtype) -> Found:
    def call(device: str) -> Any:
        torch.manual_seed(SEED)
        net = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3, bias=False)
        ).to(dtype)
        x, y = torch.randn(5, 6, dtype=dtype).to(device), torch.randint(0, 3, (5,)).to(device)
        net.to(device)
        kwargs = {
            key: each.to(device) if isinstance(each, torch.Tensor) else each
            for key, each in given.kwargs.items()
        }
        parameters = list(net.parameters())
        if info.optim_cls.__name__ == "Muon":
            parameters = [p for p in parameters if p.dim() == 2]
        optimizer = info.optim_cls(parameters, **kwargs)
        losses = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            if info.only_supports_sparse_grads:
                for parameter in parameters:
                    assert parameter.grad is not None
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        for _ in range(STEPS):
            if info.step_requires_closure:
                losses.append(optimizer.step(closure).detach())
            else:
                losses.append(closure().detach())
                optimizer.step()
        state = [
            each for of in optimizer.state.values() for _, each in sorted(of.items())
            if isinstance(each, torch.Tensor | float | int)
        ]  # fmt: skip
        return losses, parameters, state

    yield from compared("steps", lambda: call("cpu"), lambda: call("cuda"), {})
