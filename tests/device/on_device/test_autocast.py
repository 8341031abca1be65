"""Mixed precision: CUDA's casts, its weight cache, and GradScaler."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from jgpu.device.composed import autocast

TABLES = {
    "LOWER_PRECISION_FP": autocast.LOWER - {"cudnn_convolution", "cudnn_convolution_transpose"},
    "FP32": autocast.FP32,
    "FP32_SET_OPT_DTYPE": autocast.SET_DTYPE,
    "PROMOTE": autocast.PROMOTE,
}


CAST = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")


def is_cast(name):
    """Whether CUDA's autocast of this torch casts the op; more do from release to release."""
    return f"aten::{name}" in CAST


def plain(names):
    """Those without named dimensions, which are made of the others; torch 2.11 still lists them."""
    named = re.compile(r"\.names|dimname", re.IGNORECASE)
    return {name for name in names if not named.search(name)}


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_those_of_torchs_own_header(table):
    header = Path(torch.__path__[0], "include", "ATen", "autocast_mode.h")
    if not header.exists():
        pytest.skip("this torch came without its headers")
    body = re.search(rf"#define AT_FORALL_{table}\(_\)(.*?)\n\n", header.read_text(), re.DOTALL)
    names = re.findall(r"_\((\w+)(?:, (\w+))?\)", body.group(1))
    listed = {f"{base}.{over}" if over else base for base, over in names}
    assert {name for name in TABLES[table] if is_cast(name)} == plain(listed)


def test_every_op_that_cuda_casts_is_in_one_table():
    # CUDA builds cast for cuDNN, what calls it is cast here
    known = plain(name.removeprefix("aten::") for name in CAST) - {"_cudnn_rnn"}
    tables = [
        [name for name in table if is_cast(name)]
        for table in (
            autocast.LOWER, autocast.FP32, autocast.FP32_BESIDE, autocast.SET_DTYPE,
            autocast.APPEND_DTYPE, autocast.PROMOTE, autocast.BANNED,
        )
    ]  # fmt: skip
    assert known == {name for table in tables for name in table}
    assert sum(map(len, tables)) == len(known)


@pytest.fixture
def x():
    return torch.rand(8, 8, device="cuda") + 0.1


OPS = {
    "mm": (lambda x: x @ x, torch.float16),
    "linear": (lambda x: functional.linear(x, x, x[0]), torch.float16),
    "conv": (lambda x: functional.conv2d(x[None, None], x[None, None, :3, :3]), torch.float16),
    "attention": (lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3),
                  torch.float16),
    "einsum": (lambda x: torch.einsum("ij,jk->ik", x, x), torch.float16),
    "exp": (lambda x: x.half().exp(), torch.float32),
    "layer_norm": (lambda x: functional.layer_norm(x.half(), (8,)), torch.float32),
    "softmax": (lambda x: functional.softmax(x.half(), -1), torch.float32),
    "softmax_dtype": (lambda x: functional.softmax(x, -1, dtype=torch.float16), torch.float16),
    "sum": (lambda x: x.half().sum(), torch.float32),
    "cumsum": (lambda x: x.half().cumsum(0), torch.float32),
    "norm": (lambda x: torch.ops.aten.norm.Scalar(x.half()), torch.float32),
    "norm_dim": (lambda x: torch.ops.aten.norm.ScalarOpt_dim(x.half(), 2, [0]), torch.float32),
    "mse": (lambda x: functional.mse_loss(x.half(), x.half()), torch.float32),
    "addcmul": (lambda x: torch.addcmul(x.half(), x, x.half()), torch.float32),
    "dot": (lambda x: torch.dot(x[0].half(), x[0].half()), torch.float16),
    "add": (lambda x: x.half() + x.half(), torch.float16),
    "relu": (lambda x: functional.relu(x), torch.float32),
    "double": (lambda x: x.double() @ x.double(), torch.float64),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_ops_are_cast_as_on_cuda(x, name):
    run, dtype = OPS[name]
    with torch.autocast("cuda"):
        assert run(x).dtype == dtype


def test_both_states_follow_the_context(x):
    assert not torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        assert (x @ x).dtype == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("cuda", dtype=torch.float16):
            assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == torch.bfloat16
        assert (x.cpu() @ x.cpu()).dtype == torch.float32
    assert (x @ x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")
    with torch.autocast("cpu"):
        assert (x @ x).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.cuda.amp.*:FutureWarning")
def test_the_old_names_work(x):
    with torch.cuda.amp.autocast():
        assert (x @ x).dtype == torch.float16
    assert torch.cuda.amp.GradScaler().is_enabled()

    @torch.autocast("cuda")
    def multiply(x):
        return x @ x

    assert multiply(x).dtype == torch.float16


def test_what_autocast_does_not_know_still_runs(x):
    with torch.autocast("cuda"):
        assert torch.empty(3, device="cuda").normal_().dtype == torch.float32
        assert x.mul_(2).dtype == torch.float32


def test_unsafe_losses_are_refused(x):
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(x.clamp(0, 1), x.clamp(0, 1))


def test_a_weight_is_cast_once(x):
    weight = nn.Parameter(x.clone())
    with torch.autocast("cuda"):
        torch.mm(x, weight)
        torch.mm(x, weight)
        kept = [cast for tensor, cast in autocast._cache.values() if tensor() is weight]
        assert len(kept) == 1
        with torch.no_grad():
            torch.mm(x, weight)
        loss = torch.mm(x, weight).sum()
    assert not autocast._cache
    loss.backward()
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_cast_as_a_whole(x, kind):
    layer = kind(8, 4, num_layers=2).cuda()
    with torch.autocast("cuda"):
        out, _ = layer(x[:, None])
    assert out.dtype == torch.float16
    out.float().sum().backward()
    assert layer.weight_ih_l0.grad.dtype == torch.float32


def losses(device, steps=5):
    """Of a small model in bfloat16, which needs no scaling."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model[0](x)
            # From here on the host's own casts are others than CUDA's.
            assert out.dtype == torch.bfloat16
            loss = functional.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_training_gives_the_bits_of_the_hosts_autocast():
    assert losses("cuda") == losses("cpu")


def test_scaled_gradients_train_and_bad_ones_are_skipped():
    torch.manual_seed(0)
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    assert scaler.is_enabled()
    x = torch.randn(16, 4).cuda()
    found = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append(loss.item())
    assert found[-1] < found[0]
    assert scaler.get_scale() == 1024.0
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    scaler.scale(model(x).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 512.0


def test_checkpoints_are_computed_again_with_the_same_casts(x):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).cuda()
    with torch.autocast("cuda"):
        out = checkpoint(model, x, use_reentrant=False)
    assert out.dtype == torch.float16
    out.float().sum().backward()
    assert model[0].weight.grad is not None


def test_custom_functions_follow_autocast(x):
    class Exp(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a.exp()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            (a,) = ctx.saved_tensors
            return grad * a.exp()

    half = x.half().requires_grad_()
    with torch.autocast("cuda"):
        out = Exp.apply(half)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert half.grad.dtype == torch.float16
