"""Transformers and embeddings: training, evaluation, masks, generation."""

import math

import torch
import torch.nn.functional as F
from cases import case, state_of, train
from torch import nn


def _tokens(device, count=5, batch=4, length=10, vocabulary=30):
    batches = []
    for _ in range(count):
        x = torch.randint(0, vocabulary, (batch, length + 1)).to(device)
        batches.append((x[:, :-1], x[:, 1:]))
    return batches


@case
def transformer_encoder_train_and_eval(device):
    table = nn.Embedding(30, 16)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = nn.ModuleList([table, core, nn.Linear(16, 30)]).to(device)

    def logits(x):
        return net[2](net[1](net[0](x)))

    def loss_of(x, y):
        return F.cross_entropy(logits(x).flatten(0, 1), y.flatten())

    batches = _tokens(device)
    found = train(net, torch.optim.AdamW(net.parameters(), 1e-3), loss_of, batches)
    net.eval()
    x = batches[0][0]
    with torch.no_grad():
        found.append(logits(x))
        padding = torch.zeros(x.shape, dtype=torch.bool, device=device)
        padding[:, 7:] = True
        found.append(core(table(x), src_key_padding_mask=padding))
    with torch.inference_mode():
        found.append(logits(x))
    return [*found, logits(x)]


@case
def transformer_encoder_norm_first_and_masked(device):
    layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, F.gelu, norm_first=True, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(6).to(device)
    batches = [(torch.randn(3, 6, 16).to(device),) for _ in range(4)]
    return train(
        net, torch.optim.Adam(net.parameters(), 1e-3),
        lambda x: (net(x, mask=mask, is_causal=True) - x).pow(2).mean(), batches,
    )  # fmt: skip


@case
def transformer_with_decoder(device):
    net = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(5, device=device)
    batches = [
        (torch.randn(2, 6, 16).to(device), torch.randn(2, 5, 16).to(device)) for _ in range(4)
    ]
    return train(
        net, torch.optim.Adam(net.parameters(), 1e-3),
        lambda x, y: (net(x, y, tgt_mask=mask) - y).pow(2).mean(), batches,
    )  # fmt: skip


@case
def multihead_attention_with_and_without_weights(device):
    net = nn.MultiheadAttention(16, 4, batch_first=True).to(device)
    x = torch.randn(3, 5, 16).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = train(net, optimizer, lambda x: net(x, x, x)[0].pow(2).mean(), [(x,)] * 3)
    y, weights = net(x, x, x, need_weights=True, average_attn_weights=False)
    z, _ = net(x, x, x, need_weights=False)
    net.eval()
    with torch.no_grad():
        fast, _ = net(x, x, x, need_weights=False)
    return [*found, y, weights, z, fast]


class _Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.before(x)).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.down(F.gelu(self.up(self.after(x))))


class _Gpt(nn.Module):
    def __init__(self, vocabulary=30, width=32, heads=4, length=16):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(_Block(width, heads), _Block(width, heads))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))


@case
def gpt_with_tied_weights_clipping_and_warm_up(device):
    net = _Gpt().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min(1, (k + 1) / 3) * (0.5 + 0.5 * math.cos(k / 6))
    )
    found = train(
        net, optimizer, lambda x, y: F.cross_entropy(net(x).flatten(0, 1), y.flatten()),
        _tokens(device, 8), scheduler=scheduler,
        after_backward=lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0),
    )  # fmt: skip
    assert net.head.weight is net.tokens.weight
    text = torch.zeros(1, 1, dtype=torch.long, device=device)
    net.eval()
    with torch.no_grad():
        for _ in range(8):
            best = net(text)[:, -1].argmax(-1, keepdim=True)
            text = torch.cat([text, best], 1)
    return [*found, text, *text[0].tolist()]


@case
def attention_of_all_masks(device):
    q, k, v = (torch.randn(2, 2, 6, 8).to(device).requires_grad_() for _ in range(3))
    add = torch.randn(6, 6).to(device)
    keep = (torch.rand(2, 1, 6, 6) > 0.3).to(device)
    keep[..., 0] = True
    outs = [
        F.scaled_dot_product_attention(q, k, v),
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, attn_mask=add),
        F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=0.3),
        F.scaled_dot_product_attention(q[:, :, :3], k, v),
        F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True),
        torch.softmax(q @ k.transpose(-2, -1) / 3 + add, -1) @ v,
    ]
    sum(out.pow(2).sum() for out in outs).backward()
    return [*outs, q.grad, k.grad, v.grad]


@case
def embeddings_with_padding_bags_and_sparse_updates(device):
    table = nn.Embedding(20, 8, padding_idx=0, max_norm=1.5)
    bag = nn.EmbeddingBag(20, 8, mode="mean")
    top = nn.EmbeddingBag(20, 8, mode="sum")
    net = nn.ModuleList([table, bag, top, nn.Linear(24, 1)]).to(device)
    x = torch.randint(0, 20, (5, 6)).to(device)
    offsets = torch.tensor([0, 4, 9, 20, 22]).to(device)

    def loss_of(x):
        parts = [table(x).mean(1), bag(x), top(x.flatten(), offsets)]
        return net[3](torch.cat(parts, 1)).pow(2).mean()

    return train(net, torch.optim.Adagrad(net.parameters(), 0.1), loss_of, [(x,)] * 4)


@case
def bigram_counts_and_smoothing(device):
    counts = torch.zeros(12, 12, device=device)
    x = torch.randint(0, 12, (200,)).to(device)
    ones = torch.ones(199, device=device)
    counts.index_put_((x[:-1], x[1:]), ones, accumulate=True)
    table = (counts + 0.1) / (counts + 0.1).sum(1, keepdim=True)
    score = table[x[:-1], x[1:]].log().mean()
    return [counts, table, score, score.exp().item(), *state_of()]


@case
def attention_of_one_tensor_several_times(device):
    """Its gradients are added up one by one, among those of whatever else it goes into."""
    made = torch.randn(2, 4, 16, 8)
    weights = torch.arange(8.0).to(device)
    mask = torch.randn(16, 16).to(device)
    found = []
    for function in (
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: x.sin() + F.scaled_dot_product_attention(x, x, x, is_causal=True) + x.cos(),
        lambda x: F.scaled_dot_product_attention(x, x * 2, x, mask) * x,
        lambda x: F.scaled_dot_product_attention(F.scaled_dot_product_attention(x, x, x), x, x),
        lambda x: F.group_norm(x, 2) + x,
    ):
        x = made.clone().to(device).requires_grad_()
        (function(x) * weights).sum().backward()
        found.append(x.grad)
    return found
