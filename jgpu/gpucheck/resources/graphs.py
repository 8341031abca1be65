"""Whether CUDA graphs could serve repeated programs: captured, replayed, with random numbers.

    python graphs.py native whole|failed

"whole": times and whether bits are equal. "failed": a capture that fails on purpose; whether the
process goes on after it.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

OPS = 100


def chain(x: torch.Tensor) -> torch.Tensor:
    """Small ops behind each other."""
    for _ in range(OPS):
        x = x * 1.001 + 0.5
    return x


def captured(work: Callable[[], Any], stream: Any) -> tuple[Any, Any]:
    """The graph, and what it writes to."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        work()
        torch.cuda.synchronize()
        graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
        made = work()
        graph.capture_end()
    return graph, made


def timed(work: Callable[[], Any], times: int = 50) -> float:
    """Microseconds of the host's, each."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    took = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * took / times


def whole() -> dict[str, Any]:
    """What it gives."""
    stream = torch.cuda.Stream()
    x = torch.randn(4096, device="cuda")
    begin = time.perf_counter()
    graph, made = captured(lambda: chain(x), stream)
    found: dict[str, Any] = {"capture, ms": 1e3 * (time.perf_counter() - begin)}
    graph.replay()
    torch.cuda.synchronize()
    found["bits are equal"] = torch.equal(made, chain(x))
    found["eager, us"], found["replay, us"] = timed(lambda: chain(x)), timed(graph.replay)
    found["random numbers are those of eager"] = drawn(stream)
    return found


def drawn(stream: Any) -> Any:
    """Dropout in a graph, against the same in eager from the same seed."""
    x = torch.ones(4096, device="cuda")
    graph, made = captured(lambda: F.dropout(x, 0.5), stream)
    torch.cuda.manual_seed(5)
    graph.replay()
    first = made.clone()
    graph.replay()
    second = made.clone()
    torch.cuda.synchronize()
    torch.cuda.manual_seed(5)
    right = F.dropout(x, 0.5), F.dropout(x, 0.5)
    return bool(torch.equal(first, right[0]) and torch.equal(second, right[1]))


def failed() -> dict[str, Any]:
    """A value is asked for within a capture."""
    x, graph, said = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph(), ""
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            x.sum().item()
            graph.capture_end()
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            try:
                graph.capture_end()
            except RuntimeError as second:
                said += f"; {str(second).partition(chr(10))[0]}"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return {"said": said, "goes on": torch.ones(3, device="cuda").sum().item() == 3.0}


if __name__ == "__main__":
    print(json.dumps({"whole": whole, "failed": failed}[sys.argv[2]]()))
