"""Ops write into an `out` wherever native ones do."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

#: jgpu refuses an `out` of ops on sparse tensors
REFUSED = {"sparse.sampled_addmm"}
OPS = [op for op in op_db if op.supports_out and op.name not in REFUSED]


def on_device(tree):
    return tree_map(lambda each: each.cuda() if isinstance(each, torch.Tensor) else each, tree)


def natively(op, dtype):
    """The first sample that natively takes an `out`, with that."""
    for sample in op.sample_inputs("cpu", dtype):
        if not sample.kwargs.keys() & {"device", "out"}:
            made = op(sample.input, *sample.args, **sample.kwargs)
            tensors = isinstance(made, torch.Tensor) or (
                isinstance(made, tuple) and all(isinstance(each, torch.Tensor) for each in made)
            )
            if not tensors:
                return None
            out = tree_map(torch.empty_like, made)
            out = out if isinstance(out, torch.Tensor) else tuple(out)
            try:
                op(sample.input, *sample.args, **sample.kwargs, out=out)
            except (RuntimeError, TypeError):
                return None
            return sample, out
    return None


@pytest.mark.filterwarnings("ignore")
def test_every_op_takes_an_out_that_it_natively_takes():
    taken, refused = 0, []
    for op in OPS:
        dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
        with torch.no_grad():
            found = natively(op, dtype) if dtype in op.dtypes else None
            if found is None:
                continue
            sample, out = found
            given = on_device((sample.input, sample.args, sample.kwargs))
            taken += 1
            try:
                op(given[0], *given[1], **given[2], out=on_device(out))
            except Exception as error:
                refused.append((op.name, op.variant_test_name, repr(error)))
    assert refused == []
    assert taken > 250
