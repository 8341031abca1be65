"""Random numbers whose parameters keep the drawing from coming to an end.

`binomial` adds up waiting times until they exceed the count, and nothing exceeds NaN. Its kernel
gives NaN where the probability is NaN; it does so here for a count that is NaN as well.
"""

from typing import Any

import torch

from jgpu.broker.executor.programs.precautions.language import Attempt, precaution

__all__: list[str] = []


@precaution("binomial", waits=False)
def _binomial(attempt: Attempt) -> Any:
    """Draw with a count of 0 in the place of NaN; on no device does this wait."""
    count = attempt["count"]
    if not count.dtype.is_floating_point:
        return attempt.go()
    unknown = count.isnan()
    attempt["count"] = torch.where(unknown, 0, count)
    return attempt.go().masked_fill_(unknown, torch.nan)
