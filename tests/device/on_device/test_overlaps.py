"""Writing into memory that is read, too, or shown more than once: natively an error on the line."""

import pytest
import torch

ORDER = [3, 2, 1, 0]


def order(x):
    return torch.tensor(ORDER, device=x.device)


#: ops that write `out`, which may share memory with `x`
OPS = {
    "gather": lambda x, out: torch.gather(x, 0, order(x), out=out),
    "take": lambda x, out: torch.take(x, order(x), out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, order(x), out=out),
    "cat": lambda x, out: torch.cat([x[:2], x[2:]], out=out),
    "stack": lambda x, out: torch.stack([x[0], x[1], x[2], x[3]], out=out),
    "scatter": lambda x, out: torch.scatter(x, 0, order(x), x, out=out),
    "index_add": lambda x, out: torch.index_add(x, 0, order(x), x, out=out),
    "masked_select": lambda x, out: torch.masked_select(x, x > 0, out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.empty_like(order(x)))),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "sum": lambda x, out: torch.sum(x.view(-1, 1), 1, out=out),
    "add": lambda x, out: torch.add(x, 1, out=out),
    "mul": lambda x, out: torch.mul(x, x, out=out),
    "where": lambda x, out: torch.where(x > 2, x, x, out=out),
    "add_": lambda x, out: out.add_(x),
    "copy_": lambda x, out: out.copy_(x),
    "index_copy_": lambda x, out: out.index_copy_(0, order(x), x),
    "scatter_add_": lambda x, out: out.scatter_add_(0, order(x), x),
    "masked_scatter_": lambda x, out: out.masked_scatter_(x > 2, x),
    "put_": lambda x, out: out.put_(order(x), x),
    "clamp_": lambda x, out: out.clamp_(2, 3),
    "uniform_": lambda x, out: out.uniform_(2, 2),
}
#: how the tensor that is written lies to the one that is read
WAYS = {
    "the same": lambda memory: (memory[:4], memory[:4]),
    "in part": lambda memory: (memory[:4], memory[2:6]),
    "with steps": lambda memory: (memory[:8:2], memory[:4]),
    "apart": lambda memory: (memory[:4], memory[8:12]),
    "shown four times": lambda memory: (memory[:4], memory[10:11].expand(4)),
    "read four times": lambda memory: (memory[:1].expand(4), memory[:4]),
}


def outcome(op, way, device):
    memory = torch.arange(1.0, 25.0, device=device)
    try:
        op(*way(memory))
        told = None
    except RuntimeError as error:
        told = (type(error), str(error))
    return told, memory.tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", OPS)
def test_what_shares_memory_is_computed_or_refused_as_natively(op, way):
    expected = outcome(OPS[op], WAYS[way], "cpu")
    assert [outcome(OPS[op], WAYS[way], "cuda") for _ in range(3)] == [expected] * 3


def test_most_ops_refuse_some_ways_and_take_others():
    told = {
        (op, way): outcome(OPS[op], WAYS[way], "cuda")[0] is not None for op in OPS for way in WAYS
    }
    assert sum(told.values()) > 50
    assert not any(told[op, "apart"] for op in OPS)
    assert told["gather", "the same"]
    assert not told["add", "the same"]
    assert all(told[op, "in part"] for op in ("gather", "add", "add_", "cat"))


def test_a_plan_that_was_made_apart_is_looked_at_again():
    memory = torch.arange(1.0, 25.0, device="cuda")
    for _ in range(3):
        memory[12:16].add_(memory[:4])
        with pytest.raises(RuntimeError, match="some elements of the input tensor"):
            memory[2:6].add_(memory[:4])
    assert memory[12:16].tolist() == [16.0, 20.0, 24.0, 28.0]
    assert memory[:6].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_looking_draws_no_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(3).tolist()
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match="more than one element"):
        torch.zeros(1, device="cuda").expand(4).uniform_()
    assert torch.rand(3).tolist() == expected
