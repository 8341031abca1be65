"""Shape contracts: what internal ops trust in, checked once per definition.

Ops that autograd normally calls take shapes on trust and read or write past a tensor that is too
small. Each has a contract here: a few lines that say how its tensors hang together, most often by
asking the forward op's meta kernel. An internal op without a contract does not run.

No contract, no run.
"""

from jgpu.broker.executor.programs.contracts import (
    attention,
    cudnn,
    elementwise,
    extents,
    factors,
    images,
    indexing,
    lists,
    losses,
    norms,
    recurrent,
    selfchecked,
)
from jgpu.broker.executor.programs.contracts.language import (
    CONTRACTS,
    LIMITS,
    check,
    require_contract,
    works_without_meta,
)

__all__ = [
    "CONTRACTS",
    "LIMITS",
    "attention",
    "check",
    "cudnn",
    "elementwise",
    "extents",
    "factors",
    "images",
    "indexing",
    "lists",
    "losses",
    "norms",
    "recurrent",
    "require_contract",
    "selfchecked",
    "works_without_meta",
]
