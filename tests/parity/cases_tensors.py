"""Tensors without a network: types, indexing, masks, views, autograd's corners, algebra."""

import copy
import io

import torch
import torch.nn.functional as F
from cases import case, state_of, train
from torch import nn


@case
def mixed_float64_and_integer_work(device):
    a = torch.randn(6, 5, dtype=torch.float64).to(device)
    i = torch.randint(-9, 9, (6, 5)).to(device)
    f = torch.randn(6, 5).to(device)
    b = (i % 3 == 0) & (f > 0)
    return [
        a * i + f, i // 2, i % 4, -i // 3, i / 2, i.float().std(), (a > f).sum(), b.any(1),
        b.long().sum(0), i.double().mean(), torch.where(b, a, f), i.clamp(-2, 3), i ** 2, i << 1,
        i & 3, ~b, i.abs().max(), a.round(), a.floor().long(), f.to(torch.float16).float(),
        i.to(torch.int8), b.to(torch.uint8) + 250, torch.tensor(3, device=device) / 2, 2 ** f,
        1 / a, 7 - i, f.double() - f, a.sum().float(), f.half() @ f.half().t(),
        i.sum(dtype=torch.int32), a.prod(1), a.cumsum(0), i.cumprod(1),
        torch.bincount(i.flatten().abs()), f.bfloat16().softmax(-1),
        a.item() if a.numel() == 1 else a[0, 0].item(), i[0, 0].item(), b[0, 0].item(),
    ]  # fmt: skip


@case
def indexing_in_all_its_forms(device):
    x = torch.arange(60.0).view(3, 4, 5).to(device)
    rows, columns = torch.tensor([0, 2, 1]).to(device), torch.tensor([1, 0, 3]).to(device)
    y = x.clone()
    y[1] = 7
    y[:, 2, ::2] = x[:, 1, 1:4]
    y[rows, columns] = -1.0
    y[y > 50] *= 2
    y[..., -1] += 1
    y[0, 1:3].zero_()
    y[[0, 1], [1, 2], [3, 4]] = torch.tensor([5.0, 6.0]).to(device)
    z = y.clone()
    z[torch.tensor([True, False, True])] = 3.5
    return [
        x[0], x[-1, 1], x[:, None, 1], x[..., 2], x[::2, 1::2], x[rows], x[rows, columns],
        x[:, [3, 0]], x[x % 7 == 0], x[x.sum((1, 2)) > 300], x[0][[True, False, True, False]], y,
        z, x[None, ..., None].shape[0], x.take(rows), x.index_select(1, columns),
        x.gather(2, columns.view(1, 1, 3).expand(3, 4, 3)),
        torch.zeros(3, 4, device=device).scatter_(1, columns.view(3, 1), 1.5),
        torch.zeros(3, 4, device=device).scatter_add_(1, columns[:, None].expand(3, 2), x[:, 0]),
        torch.zeros(5, 4, device=device).index_add_(0, rows, x[:, :, 0]),
        x.index_fill(1, rows, 9.0), x.masked_fill(x > 30, float("-inf")),
        x.masked_select(x > 55), torch.nonzero(x > 57),
        torch.take_along_dim(x, x.argsort(-1), -1), x.tolist()[0][1][2], x[1, 2, 3].item(),
        x.unfold(2, 3, 1),
    ]  # fmt: skip


@case
def boolean_masks_under_autograd(device):
    x = torch.randn(8, 6).to(device).requires_grad_()
    mask = (torch.rand(8, 6) > 0.4).to(device)
    picked = x[mask]
    loss = (picked.exp().sum() + x.masked_fill(~mask, 0.0).pow(3).sum()) / mask.sum()
    loss = loss + torch.where(mask, x, x * 2).std() + x[:, 2][x[:, 2] > 0].sum()
    loss.backward()
    return [picked, loss, x.grad, mask.nonzero(), torch.count_nonzero(mask)]


@case
def views_that_are_written_through(device):
    x = torch.zeros(4, 6, device=device)
    x.t()[2] += 1
    x.view(2, 12)[0, ::3] = 4
    part = x[1:3, 2:5]
    part.add_(part.clone().mul_(2)).clamp_(max=9)
    x.diagonal().copy_(torch.arange(4.0).to(device))
    x[:, 0].fill_(2.5)
    flat = x.flatten()
    flat[5] = -1
    left, right = x.chunk(2, 1)
    left.sub_(right)
    x.narrow(0, 3, 1).exp_()
    other = x.as_strided((3, 2), (6, 2), 1)
    other *= 1.5
    x.unsqueeze(0).transpose(1, 2)[0, 4, 1] = 42
    return [
        x, flat, part, other, left.is_contiguous(), x.t().contiguous(), x.expand(2, 4, 6).sum(0),
        x.storage_offset(), right.storage_offset(),
    ]  # fmt: skip


@case
def in_place_ops_under_autograd(device):
    w = torch.randn(5, 5).to(device).requires_grad_()
    x = w * 2
    x[1:3] = x[2:4].clone() * 3
    x.mul_(0.5).add_(w).relu_()
    x = x.clone()
    x[:, 0] *= 4
    y = x.t().contiguous().tanh_()
    y.sum().backward()
    return [x, y, w.grad, x._version, w._version]


@case
def shapes_joined_split_and_turned(device):
    x, y = torch.randn(3, 4).to(device), torch.randn(3, 4).to(device)
    return [
        torch.cat([x, y]), torch.cat([x, y], 1), torch.stack([x, y], -1), torch.hstack([x, y]),
        torch.vstack([x, y]), *x.split([1, 2]), *x.unbind(1), x.flip(0), x.roll(1, 1),
        torch.rot90(x), x.repeat(2, 3), x.tile(2), x.repeat_interleave(2, 0),
        torch.repeat_interleave(x, torch.tensor([1, 0, 2]).to(device), 0), x.movedim(0, 1),
        torch.meshgrid(x[0], y[:, 0], indexing="ij")[0], torch.tril(x), torch.triu(x, 1),
        torch.block_diag(x, y), torch.cartesian_prod(x[0], y[0]), F.pad(x, (1, 2)),
        F.one_hot(x.argmax(1), 4), torch.broadcast_to(x[:1], (2, 4)), torch.kron(x, y),
        torch.outer(x[0], y[0]), torch.diag(x[0]), torch.vander(x[0]), x.new_zeros(2),
        torch.full_like(x, 3), torch.eye(3, device=device),
        torch.arange(0, 1, 0.25, device=device), torch.linspace(0, 1, 7, device=device),
    ]  # fmt: skip


@case
def reductions_sorts_and_statistics(device):
    x = torch.randn(6, 7).to(device)
    e = x.clone()
    e[0] = e[1]
    return [
        x.sum(), x.mean(0), x.var(1), x.std((0, 1)), x.norm(), x.norm(1, 0),
        torch.linalg.vector_norm(x, 3), x.amax(1), *x.max(1), *x.min(0), *x.median(1),
        *x.mode(1), *x.topk(3, 1), *x.sort(1, descending=True), x.argsort(dim=0, stable=True),
        x.logsumexp(1), x.softmax(0), *x.kthvalue(2, 1), x.quantile(0.3), torch.histc(x, 5),
        torch.unique(x.round()),
        *torch.unique(x.round(), return_inverse=True, return_counts=True),
        torch.unique_consecutive(x.round().flatten()), x.cumsum(1), x.cummax(0)[0], x.diff(),
        torch.bucketize(x, torch.tensor([-1.0, 0, 1]).to(device)),
        torch.searchsorted(x.sort(1)[0], x), x.any(), x.isnan().all(), torch.allclose(x, e),
        torch.equal(x, x.clone()), x.nansum(), x.count_nonzero(), torch.cov(x),
        torch.corrcoef(x), x.aminmax()[0], x.logcumsumexp(0), x.nanmedian(), torch.cdist(x, e),
        torch.trapezoid(x), x.argmax().item(), x.abs().argmin(1), x.renorm(2, 0, 1.0),
    ]  # fmt: skip


@case
def products_and_einsum(device):
    a, b = torch.randn(2, 3, 4).to(device), torch.randn(2, 4, 5).to(device)
    m, v = torch.randn(4, 4).to(device), torch.randn(4).to(device)
    for t in (a, b, m, v):
        t.requires_grad_()
    outs = [
        a @ b, torch.bmm(a, b), torch.einsum("bij,bjk->bik", a, b),
        torch.einsum("bij,jk,k->bi", a, m, v), m @ v, v @ m, v @ v,
        torch.addmm(m, m, m, beta=0.5, alpha=2), torch.baddbmm(a @ b, a, b),
        torch.tensordot(a, b, ([2], [1])), torch.matrix_power(m, 3), F.linear(a, m, v),
        F.bilinear(v[None], v[None], m[None]), torch.chain_matmul(m, m, m), torch.dot(v, v),
        torch.linalg.multi_dot([m, m, v]), a[0].T @ a[0], F.cosine_similarity(m, m.t()),
        F.normalize(m),
    ]  # fmt: skip
    sum(out.sum() for out in outs).backward()
    return [*outs, a.grad, b.grad, m.grad, v.grad]


@case
def linear_algebra(device):
    m = torch.randn(5, 5, dtype=torch.float64).to(device)
    s = (m @ m.t() + torch.eye(5, device=device)).requires_grad_()
    v = torch.randn(5, 2, dtype=torch.float64).to(device)
    low, q = torch.linalg.cholesky(s), torch.linalg.qr(m)
    values, vectors = torch.linalg.eigh(s)
    outs = [
        low, *q, values, vectors.abs(), torch.linalg.inv(s), torch.linalg.det(s), torch.logdet(s),
        torch.linalg.solve(s, v), *torch.linalg.slogdet(s), torch.linalg.svdvals(m),
        torch.linalg.pinv(m), torch.linalg.matrix_norm(m), torch.trace(s),
         torch.linalg.matrix_rank(m),
        torch.cholesky_solve(v, low), torch.matrix_exp(m),
        torch.linalg.solve_triangular(low, v, upper=False), torch.linalg.cross(m[:, :3], m[:, 2:]),
    ]  # fmt: skip
    (values.sum() + outs[5].sum() + torch.logdet(s)).backward()
    return [*outs, s.grad]


@case
def complex_numbers_and_fourier(device):
    x = torch.randn(4, 8).to(device).requires_grad_()
    z = torch.fft.fft(x)
    y = torch.fft.ifft(z * z.conj()).real
    r = torch.fft.irfft(torch.fft.rfft(x) * 2, n=8)
    c = torch.complex(x.detach(), y.detach())
    (y.sum() + r.pow(2).sum() + z.abs().sum()).backward()
    return [
        z, y, r, x.grad, c * 1j, c.conj() @ c.t(), c.angle(), torch.view_as_real(c), c.abs(),
        c.real + c.imag, torch.fft.fft2(x), torch.fft.fftshift(x), torch.polar(x.abs(), x),
        c.mH @ c,
    ]  # fmt: skip


@case
def elementwise_functions(device):
    x = (torch.rand(4, 5) + 0.1).to(device).requires_grad_()
    names = (
        "exp log sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh sigmoid abs neg reciprocal "
        "log1p expm1 erf erfc lgamma digamma square sign floor ceil round trunc frac log2 exp2"
    )
    outs = [getattr(x * 0.9, name)() for name in names.split()]
    outs += [
        x.pow(2.5), x.pow(x), torch.atan2(x, x + 1), torch.hypot(x, x), x.fmod(0.3),
        x.lerp(x * 2, 0.3), torch.addcmul(x, x, x, value=0.5),
        torch.addcdiv(x, x, x + 1, value=2), x.clamp(0.3, 0.6), torch.maximum(x, x.flip(0)),
        torch.minimum(x, x.flip(1)), x.xlogy(x), x.logit(0.2), x.nan_to_num(), F.softplus(x, 2),
        F.threshold(x, 0.5, 0.1), F.hardsigmoid(x), torch.erfinv(x * 0.5), x.float_power(1.5),
    ]  # fmt: skip
    sum(out.sum().float() for out in outs).backward()
    return [*outs, x.grad]


@case
def autograd_beyond_backward(device):
    x = torch.randn(6).to(device).requires_grad_()
    w = torch.randn(6, 6).to(device).requires_grad_()
    y = (w @ x).tanh().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.pow(2).sum(), w)
    seen = []
    z = x * 3
    z.register_hook(lambda grad: seen.append(grad.clone()) or grad * 2)
    z.retain_grad()
    z.pow(2).sum().backward(retain_graph=True)
    jacobian = torch.autograd.functional.jacobian(lambda t: (w @ t).sin(), x)
    hessian = torch.autograd.functional.hessian(lambda t: (w @ t).pow(2).sum(), x.detach())
    return [g, h, *seen, z.grad, x.grad, jacobian, hessian]


@case
def functions_of_ones_own_and_checkpoints(device):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            return scale * x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * ctx.scale * 3 * x**2, None

    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).to(device)
    x = torch.randn(4, 6).to(device).requires_grad_()
    y = torch.utils.checkpoint.checkpoint(net, Cube.apply(x, 0.5), use_reentrant=False)
    y.pow(2).sum().backward()
    return [y, x.grad, *(p.grad for p in net.parameters())]


@case
def functional_transforms(device):
    from torch.func import functional_call, grad, vmap

    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    parameters = {k: v.detach() for k, v in net.named_parameters()}
    x, y = torch.randn(5, 4).to(device), torch.randn(5, 1).to(device)

    def loss_of(parameters, x, y):
        return (functional_call(net, parameters, (x,)) - y).pow(2).mean()

    whole = grad(loss_of)(parameters, x, y)
    each = vmap(grad(loss_of), (None, 0, 0))(parameters, x, y)
    return [*whole.values(), *each.values(), vmap(torch.dot)(x, x)]


@case
def copies_of_modules_and_optimizers(device):
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)
    x, y = torch.randn(6, 4).to(device), torch.randint(0, 2, (6,)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    loss_of = lambda net: lambda x, y: F.cross_entropy(net(x), y)  # noqa: E731
    found = train(net, optimizer, loss_of(net), [(x, y)] * 3)
    twin, state = copy.deepcopy(net), copy.deepcopy(optimizer.state_dict())
    again = torch.optim.Adam(twin.parameters(), 1e-2)
    again.load_state_dict(state)
    found += train(net, optimizer, loss_of(net), [(x, y)] * 3)
    found += train(twin, again, loss_of(twin), [(x, y)] * 3)
    best = {k: v.clone() for k, v in net.state_dict().items()}
    train(net, optimizer, loss_of(net), [(x, y)] * 2)
    net.load_state_dict(best)
    both = copy.deepcopy([net[0].weight, net[0].weight])
    assert both[0] is both[1]
    return found + state_of(net, twin, again) + both


@case
def state_dict_through_a_file_in_memory(device):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    x, y = torch.randn(6, 4).to(device), torch.randint(0, 2, (6,)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    train(net, optimizer, lambda x, y: F.cross_entropy(net(x), y), [(x, y)] * 3)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "k": 3}, file)
    file.seek(0)
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    again = torch.optim.Adam(other.parameters(), 1e-2)
    loaded = torch.load(file, weights_only=True)
    other.load_state_dict(loaded["net"])
    again.load_state_dict(loaded["optimizer"])
    file.seek(0)
    on_host = torch.load(file, map_location="cpu")
    assert all(not t.is_cuda for t in on_host["net"].values())
    return train(other, again, lambda x, y: F.cross_entropy(other(x), y), [(x, y)] * 3)


class _Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, k):
        return torch.arange(k, k + 4, dtype=torch.float32) / 10, k % 3


def _loaded(device, **options):
    data = torch.utils.data.DataLoader(_Squares(), batch_size=4, shuffle=True, **options)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = []
    for _ in range(2):
        batches = [(x.to(device, non_blocking=True), y.to(device)) for x, y in data]
        found += train(net, optimizer, lambda x, y: F.cross_entropy(net(x), y), batches)
    return found


@case
def data_loader(device):
    return _loaded(device)


@case
def data_loader_with_workers(device):
    return _loaded(device, num_workers=2)


@case
def data_loader_with_lasting_workers_and_pinned_memory(device):
    return _loaded(device, num_workers=1, persistent_workers=True, pin_memory=device != "cpu")


@case
def a_dataset_on_the_device(device):
    data, labels = torch.randn(64, 6).to(device), torch.randint(0, 3, (64,)).to(device)
    net = nn.Linear(6, 3).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    batches = [(data[k : k + 8], labels[k : k + 8]) for k in range(0, 64, 8)]
    order = torch.randperm(64)
    batches += [(data[order[k : k + 8]], labels[order[k : k + 8]]) for k in range(0, 64, 16)]
    order = order.to(device)
    batches += [(data[order[k : k + 8]], labels[order[k : k + 8]]) for k in range(0, 64, 16)]
    found = train(net, optimizer, lambda x, y: F.cross_entropy(net(x), y), batches)
    right = sum((net(x).argmax(1) == y).sum().item() for x, y in batches)
    return [*found, right, (net(data).argmax(1) == labels).float().mean().item()]


@case
def attributes_changed_from_outside(device):
    net = nn.Linear(4, 4).to(device)
    x = torch.randn(2, 4).to(device)
    net.weight.data.mul_(0.5)
    net.bias.data = torch.ones(4, device=device)
    with torch.no_grad():
        net.weight[0].fill_(0.25)
        net.weight.copy_(net.weight.t().clone())
    net.weight.grad = torch.ones_like(net.weight)
    nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(net.parameters()) * 2, net.parameters()
    )
    x.resize_(1, 4)
    y = torch.empty(0, device=device)
    torch.add(x, 1, out=y)
    return [net(x), x, y, net.weight.grad, *state_of(net)]
