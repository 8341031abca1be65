"""Ops off the beaten track: outputs of the caller's, inference mode, lists, lengths, libraries."""

import torch
import torch.nn.functional as F
from cases import case, named, on_device
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence


@case
def views_and_fused_layers_in_inference_mode(device):
    x, long = torch.randn(4, 6).to(device), torch.randn(4, 6).to(device)
    heads = torch.randn(2, 3, 5, 8).to(device)
    images = torch.randn(1, 2, 5, 5).to(device)
    with torch.inference_mode():
        first = x[0]
        first.add_(1)
        long.transpose_(0, 1)
        whole = torch.empty(0, device=device)
        torch.add(x, x, out=whole)
        return [
            x, first, x.detach(), x.view(-1)[2:9], x.T.reshape(3, 8), long, whole,
            first.is_inference(), (x * 2).is_inference(), *x.chunk(2), *x.unbind(1)[:2],
            F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
            F.dropout(x, 0.5, training=False), F.interpolate(images, scale_factor=1.5),
            F.interpolate(images, size=(7, 9), mode="bilinear"),
            F.interpolate(images, scale_factor=2, mode="bicubic"),
        ]  # fmt: skip


@case
def outputs_given_by_the_caller_in_any_size(device):
    x = torch.randn(5, 4).to(device)
    found = []
    for size in (0, 3, 7):
        picked = torch.empty(size, device=device)
        places = torch.empty(size, dtype=torch.long, device=device)
        torch.masked_select(x, x > 0, out=picked)
        torch.nonzero(x > 0, out=places)
        factors = torch.empty(size, device=device), torch.empty(size, device=device)
        torch.geqrf(x, out=factors)
        rows = [torch.empty(size, device=device) for _ in range(5)]
        torch.unbind_copy(x, out=rows)
        found += [picked, places, *factors, *rows]
    like = torch.empty(2, device=device).resize_as_(x).copy_(x)
    doubled = torch.empty(20, device=device)
    shown = doubled[:20]
    torch.mul(x.flatten(), 2, out=doubled)  # of the right size: views of it follow
    return [*found, like, doubled, shown]


@case
def pictures_sampled_at_learnt_places(device):
    pictures = torch.randn(2, 3, 5, 6).to(device).requires_grad_()
    theta = torch.randn(2, 2, 3).to(device).requires_grad_()
    grid = F.affine_grid(theta, (2, 3, 4, 7), align_corners=True)
    found = []
    for how in ({}, {"padding_mode": "border"}, {"mode": "nearest"}, {"mode": "bicubic"}):
        for aligned in (True, False):
            made = F.grid_sample(pictures, grid, align_corners=aligned, **how)
            found += [
                made,
                *torch.autograd.grad(made.square().sum(), (pictures, theta), retain_graph=True),
            ]
    return found


@case
def sequences_of_many_lengths(device):
    long, short = torch.randn(5, 3).to(device), torch.randn(2, 3).to(device)
    long.requires_grad_()
    packed = pack_sequence([short, long], enforce_sorted=False)
    padded, lengths = pad_packed_sequence(packed, total_length=6, padding_value=-1.0)
    logs = torch.randn(6, 2, 5).to(device).requires_grad_()
    labels = torch.tensor([[1, 2, 3], [2, 2, 0]]).to(device)
    sizes = torch.tensor([6, 5]), torch.tensor([3, 2])
    loss = F.ctc_loss(logs.log_softmax(-1), labels, *sizes)
    (loss + padded.pow(2).sum()).backward()
    return [packed.data, packed.batch_sizes, padded, lengths, loss, long.grad, logs.grad]


@case
def segments_bags_and_histograms(device):
    x = torch.randn(6, 3).to(device).requires_grad_()
    index, offsets = torch.tensor([0, 5, 2, 2]).to(device), torch.tensor([0, 3]).to(device)
    found = [
        F.embedding_bag(index, x, offsets, mode=mode) for mode in ("sum", "mean", "max")
    ]  # fmt: skip
    for reduce in ("sum", "mean", "max", "min", "prod"):
        lengths = torch.tensor([1, 0, 5]).to(device)
        found.append(torch.segment_reduce(x, reduce, lengths=lengths, initial=1.0))
        bounds = torch.tensor([0, 2, 6]).to(device)
        found.append(torch.segment_reduce(x, reduce, offsets=bounds))
    sum(value.sum() for value in found).backward()
    flat, at = x.detach().flatten(), torch.tensor([-1.0, 0.0, 2.0]).to(device)
    counts, edges = torch.histogramdd(x.detach()[:, :2], [2, 3], density=True)
    return [
        *found, x.grad, counts, *edges, torch.histc(flat, 5), torch.histc(flat, 5, 0, 1.5),
        *torch.histogram(flat, 4), *torch.histogram(flat, at),
    ]  # fmt: skip


@case
def questions_with_plain_answers(device):
    x = torch.arange(6.0).to(device)
    y = x.clone()
    y[2] += 1e-9
    return [
        torch.equal(x, y), torch.allclose(x, y + 1e-7), torch.allclose(x, y + 1), x.is_set_to(y),
        x.is_set_to(x.view(6)), x.is_set_to(x[1:]), bool((x > 7).any()), x[3].is_nonzero(),
        x.is_same_size(y), int(x.argmax()), float(x.sum()), complex(x[1]), x.tolist()[2],
        x.numel(), x.is_contiguous(), torch.is_nonzero(x[0]), x.count_nonzero().item(),
    ]  # fmt: skip


@torch.library.custom_op("parity::rotated", mutates_args=())
def _rotated(x: torch.Tensor, angle: float) -> torch.Tensor:
    return torch.cat([x * angle, torch.zeros_like(x)]).sin()


_rotated.register_autograd(
    lambda ctx, grad: (grad[: len(ctx.saved)] * ctx.angle * (ctx.saved * ctx.angle).cos(), None),
    setup_context=lambda ctx, inputs, output: ctx.__dict__.update(
        saved=inputs[0].detach(), angle=inputs[1]
    ),
)


@case
def ops_of_a_library_written_in_python(device):
    x = torch.randn(4).to(device).requires_grad_()
    y = _rotated(x, 0.5)
    y.sum().backward()
    return [y, x.grad]


@case
def derivatives_of_derivatives(device):
    x = torch.randn(3, 4).to(device).requires_grad_()
    found = []
    for function in (
        F.softsign, F.gelu, torch.tanh, F.normalize, lambda t: t.norm(dim=1), F.silu,
        lambda t: t.softmax(-1), lambda t: (t @ t.T).logsumexp(0), lambda t: F.layer_norm(t, (4,)),
    ):  # fmt: skip
        (first,) = torch.autograd.grad(function(x).pow(2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x)
        found += [first, second]
    return found


for _dtype in (torch.float16, torch.bfloat16, torch.float64):

    @named(f"normalised_in_{str(_dtype)[6:]}")
    def _normalised(device, dtype=_dtype):
        nets = nn.LayerNorm(6), nn.BatchNorm1d(6), nn.BatchNorm1d(6, track_running_stats=False)
        x, found = torch.randn(8, 6, dtype=dtype).to(device).requires_grad_(), []
        for net in nets:
            net.to(device, dtype)
            y = net(x)
            y.pow(2).sum().backward()
            found += [y, *(p.grad for p in net.parameters()), *net.buffers()]
            net.eval()
            found.append(net(x))
        return [*found, x.grad]


@case
def counts_and_shapes_drawn_at_random(device):
    rate = torch.tensor([0.5, 3.0, 20.0]).to(device)
    odds = torch.tensor([0.1, 0.5, 0.9]).to(device)
    many = torch.tensor([4.0, 10.0, 30.0]).to(device)
    concentration = rate.clone().requires_grad_()
    with on_device(device):
        gamma = torch.distributions.Gamma(concentration, 2.0).rsample((4,))
        spread = torch.distributions.Dirichlet(concentration).rsample((3,))
        (gamma.sum() + spread.pow(2).sum()).backward()
        return [
            gamma, spread, concentration.grad, torch.poisson(rate), torch.binomial(many, odds),
            torch.multinomial(rate, 2), torch.multinomial(odds, 9, replacement=True),
            torch._standard_gamma(rate), torch._sample_dirichlet(rate),
        ]  # fmt: skip
