"""From a process with a seat to a CUDA without a GPU: all of the way that a GPU's programs go."""

import json
from pathlib import Path

import pytest
from seat import broker_on

#: runs pytest in a process with a seat
PYTEST = (
    "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
)
INDEXING = Path(__file__).parent / "on_device" / "test_indexing.py"

#: what the judge does otherwise than torch on the CPU: the kernels that CUDA takes, by name
PROGRAM = """
import json, sys
import torch
import torch.nn.functional as F

on = sys.argv[1]
if on == "cpu":
    from jgpu.broker.executor.devices.onhost.eager import Eagerly
    from jgpu.broker.executor.devices.onhost.generator import PhiloxGenerator

    generator = PhiloxGenerator().manual_seed(11)
    dropout = lambda x, p: torch.native_dropout(x, p, True)[0]
    def attention(q, k, v, p, causal):
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, p, causal)[0]
    context = Eagerly(generator)
else:
    from contextlib import nullcontext

    torch.cuda.manual_seed(11)
    dropout = lambda x, p: F.dropout(x, p)
    def attention(q, k, v, p, causal):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)
    context = nullcontext()

torch.manual_seed(3)
table = torch.nn.Embedding(9, 32)
mix = torch.nn.Linear(32, 96)
out = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 9))
tokens = torch.randint(0, 9, (4, 17))
model = torch.nn.ModuleList([table, mix, out])
if on == "cuda":
    torch.cuda.manual_seed(11)
    model.cuda()
    tokens = tokens.cuda()
adam = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)

def step():
    adam.zero_grad()
    x = dropout(table(tokens[:, :-1]), 0.1)
    q, k, v = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in mix(x).chunk(3, -1))
    y = attention(q, k, v, 0.2, True).transpose(1, 2).flatten(2)
    loss = F.cross_entropy(out(x + y).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    adam.step()
    return loss.item().hex()

with context:
    losses = [step() for _ in range(6)]
    grads = [p.grad.double().sum().item().hex() for p in model.parameters()]
print(json.dumps([losses, grads]))
"""

BAD = {
    "IndexError": [
        "F.cross_entropy(torch.randn(4, 3, device='cuda'), torch.full((4,), 3, device='cuda'))",
        "F.embedding(torch.full((2,), 9, device='cuda'), torch.randn(5, 2, device='cuda'))",
        "torch.arange(5, device='cuda')[torch.full((2,), 6, device='cuda')]",
        "torch.arange(5, device='cuda').gather(0, torch.full((2,), -1, device='cuda'))",
        "torch.zeros(5, device='cuda').index_add(0, torch.full((1,), 5, device='cuda'), ones)",
    ],
    "RuntimeError": [
        "torch.multinomial(torch.full((3,), float('nan'), device='cuda'), 1)",
        "torch.bernoulli(torch.full((3,), 2.0, device='cuda'))",
        "F.binary_cross_entropy(torch.full((1,), 2.0, device='cuda'), ones)",
        "torch.linalg.inv(torch.zeros(3, 3, device='cuda'))",
    ],
}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    with broker_on(
        "cuda-on-host", tmp_path_factory.mktemp("onhost"), "--lanes", "2", "--threads", "1"
    ) as broker:
        yield broker


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_training_with_dropout_and_attention_is_the_same_through_the_device_and_at_once(gpu):
    by_device = [json.loads(gpu.seat(PROGRAM, "cuda").check().out) for _ in range(3)]
    at_once = json.loads(gpu.seat(PROGRAM, "cpu", environment={"JGPU_TICKET": ""}).check().out)
    assert by_device == [at_once] * 3


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_wrong_value_is_an_error_on_its_line_and_the_device_goes_on(gpu):
    lines = [(error, line) for error, found in BAD.items() for line in found]
    source = "\n".join(
        [
            "import torch, torch.nn.functional as F",
            "ones, kept = torch.ones(1, device='cuda'), torch.arange(6.0, device='cuda')",
            *(
                f"try:\n    {line}.sum().item()\nexcept {error} as error:\n"
                f"    print({error!r}, {line[:20]!r} in str(error))\nelse:\n    print('no error')"
                for error, line in lines
            ),
            "print(kept.tolist())",
        ]
    )
    told = gpu.seat(source).check().out.splitlines()
    assert told[-1] == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]"
    assert [line.split()[0] for line in told[:-1]] == [error for error, _ in lines], told


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_indices_and_what_is_empty_are_told_of_as_on_the_other_device(gpu):
    """But for what is in the device's own words, or lost with what it was written to."""
    own = (
        "is_not_there_is_told_of_with_its_op",
        "decides_by_what_it_holds",
        "is_filled_where_nothing_is",
    )
    chosen = " and ".join(f"not {name}" for name in own)
    gpu.seat(PYTEST, "-k", chosen, INDEXING, environment={"JGPU_EVERY": "11"}).check()


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_what_is_filled_where_nothing_is_says_so_on_its_line(gpu):
    source = """
import torch
kept, index = torch.arange(6.0, device="cuda"), torch.tensor([5, 1], device="cuda")
for value in 3 * (4.0, torch.tensor(4.0, device="cuda")):
    for nothing in (torch.zeros(0, 3, device="cuda"), torch.zeros(2, 0, device="cuda").t()):
        for fill in (nothing.index_fill, nothing.index_fill_):
            try:
                fill(0, index, value)
            except IndexError as error:
                assert "index looks into nothing" in str(error), error
            else:
                raise SystemExit("it was filled")
torch.cuda.synchronize()
print(kept.tolist())
"""
    assert gpu.seat(source).check().out.strip() == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]"


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_mask_beside_an_index_of_what_is_empty_decides_by_what_it_holds(gpu):
    source = """
import torch
put = torch.ops.aten.index_put_
rows, kept = torch.tensor([0], device="cuda"), torch.arange(6.0, device="cuda")
for held, dtype in 3 * [(k, dtype) for k in (False, True) for dtype in (torch.bool, torch.uint8)]:
    mask = torch.tensor([False, held, False], device="cuda").to(dtype)
    x = torch.zeros(0, 3, device="cuda")
    forms = [lambda: torch.ops.aten.index(x, [rows, mask]).shape == (0,)]
    for added in (False, True):
        value = torch.ones((), device="cuda")
        forms.append(lambda a=added: put(x.clone(), [rows, mask], value, a).shape == (0, 3))
    for form in forms:
        try:
            assert form()
            torch.cuda.synchronize()
            assert not held
        except IndexError as error:
            assert held and "out of bounds for dimension with size 0" in str(error), error
    full = torch.zeros(3, 3, device="cuda")
    assert put(full, [rows, mask], torch.ones((), device="cuda")).sum().item() == held
print(kept.tolist())
"""
    assert gpu.seat(source).check().out == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n"


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_what_is_looked_up_by_nothing_is_empty_and_what_looks_into_nothing_is_refused(gpu):
    source = """
import torch
kept, value = torch.arange(6.0, device="cuda"), torch.ones((), device="cuda")
x, flat = torch.zeros(0, 3, device="cuda"), torch.zeros(0, device="cuda")
forms = [
    lambda i, like: x.index_select(0, i),
    lambda i, like: x.gather(0, i[:, None].expand(-1, 3)),
    lambda i, like: x.scatter(0, i[:, None].expand(-1, 3), 4.0),
    lambda i, like: x.scatter_add(0, i[:, None].expand(-1, 3), like),
    lambda i, like: x.index_add(0, i, like),
    lambda i, like: x.index_copy(0, i, like),
    lambda i, like: x.index_fill(0, i, 4.0),
    lambda i, like: flat.take(i),
    lambda i, like: flat.put(i, like[:, 0]),
    lambda i, like: torch.nn.functional.embedding(i, x),
    lambda i, like: torch.ops.aten._index_put_impl_(x.clone(), [i], value),
    lambda i, like: torch.ops.aten._index_put_impl_(x.clone(), [i], value, True),
]
for _ in range(3):
    for k, form in enumerate(forms):
        nothing = torch.zeros(0, dtype=torch.int64, device="cuda")
        assert form(nothing, x).cpu().numel() == 0
        try:
            form(nothing.new_zeros(1), x.new_ones(1, 3))
            torch.cuda.synchronize()
        except (IndexError, RuntimeError):
            continue
        raise AssertionError(k)
print(kept.tolist())
"""
    assert gpu.seat(source).check().out == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n"


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_cudnns_recurrent_layers_are_those_of_the_cpu_but_for_the_last_bits(gpu):
    """cuDNN's sums are in another order than the CPU's; dropout between layers is the device's."""
    source = """
import torch
torch.manual_seed(0)
for kind in (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM):
    for options in ({}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True}):
        layer = kind(5, 7, **options)
        x = torch.randn(6, 3, 5)
        right, _ = layer(x)
        right.square().sum().backward()
        grads = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        layer.cuda()
        found, _ = layer(x.cuda())
        found.square().sum().backward()
        torch.testing.assert_close(found.cpu(), right, rtol=1e-5, atol=1e-6)
        for p, grad in zip(layer.parameters(), grads):
            torch.testing.assert_close(p.grad.cpu(), grad, rtol=1e-4, atol=1e-5)
layer = torch.nn.LSTM(5, 7, 2, dropout=0.5).cuda()
outputs = []
for _ in range(2):
    torch.manual_seed(1)
    torch.cuda.manual_seed(1)
    outputs.append(layer(torch.ones(4, 2, 5).cuda())[0].cpu())
assert torch.equal(*outputs)
rows = torch.ones(4, 2, 5, device="cuda", requires_grad=True)
evaluated = layer.eval()(rows)[0].sum()
try:
    evaluated.backward()
except RuntimeError as error:
    assert "cudnn RNN backward can only be called in training mode" in str(error), error
else:
    raise AssertionError("cuDNN has no backward of an evaluation")
layer.train()(rows)[0].sum().backward()
assert rows.grad.isfinite().all()
"""
    gpu.seat(source).check()


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_complex_numbers_and_products_that_widen_are_computed_as_on_the_cpu(gpu):
    source = """
import torch
torch.manual_seed(0)
tall = torch.randn(5, 3, dtype=torch.complex64)
for _ in range(3):
    torch.testing.assert_close(torch.linalg.pinv(tall.cuda()).cpu(), torch.linalg.pinv(tall))
    left = [torch.linalg.lstsq(t, t[:, :1] + 1).residuals.cpu() for t in (tall.cuda(), tall)]
    torch.testing.assert_close(*left)
    pairs = torch.empty(400, dtype=torch.complex64, device="cuda").uniform_(2, 3)
    drawn = torch.view_as_real(pairs)
    assert 2 <= drawn.min() < 2.1 and 2.9 < drawn.max() <= 3
    assert len(drawn.cpu().unique()) > 700
halves = [torch.randn(*shape, dtype=torch.bfloat16) for shape in ((4, 3), (3, 5))]
right = halves[0].float() @ halves[1].float()
for _ in range(3):
    there = [each.cuda() for each in halves]
    out = torch.empty(4, 5, device="cuda")
    torch.mm(*there, out_dtype=torch.float32, out=out)
    torch.testing.assert_close(out.cpu(), right)
    torch.testing.assert_close(torch.mm(*there, out_dtype=torch.float32).cpu(), right)
"""
    gpu.seat(source).check()


SEEDS = """
import torch
query = torch.ones(1, 2, 8, 16, device="cuda", dtype=torch.float16)
efficient = torch.ops.aten._scaled_dot_product_efficient_attention
torch.cuda.manual_seed(3)
*_, seed, offset = efficient(query, query, query, None, True, 0.5)
assert (seed.item(), seed.cpu().tolist(), (seed + 1).item()) == (3, 3, 4)
*_, later = efficient(query, query, query, None, True, 0.5)
assert later.item() > offset.item() >= 0
"""


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_seeds_of_attention_are_read_like_other_tensors(gpu):
    gpu.seat(SEEDS).check()
