"""Short trainings as notebooks have them, each loss read: what waits in them on a GPU?

python everyday_programs.py [NAME ...]
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 12
CLASSES, FEATURES, ROWS, WORDS = 10, 20, 16, 50


def rows():
    """Rows of features, and their classes."""
    return torch.randn(ROWS, FEATURES).cuda(), torch.randint(0, CLASSES, (ROWS,)).cuda()


def images(channels=1, size=12):
    x = torch.randn(4, channels, size, size)
    return x.cuda(), torch.randint(0, CLASSES, (4,)).cuda()


def pixels():
    x = torch.randn(4, 1, 8, 8)
    return x.cuda(), torch.randint(0, CLASSES, (4, 8, 8)).cuda()


def texts():
    return torch.randint(0, WORDS, (8, 12)).cuda(), torch.randint(0, CLASSES, (8,)).cuda()


def train(model, batch, loss=None, optimizer=None, clip=False):
    """Minimise `loss(model, *batch())` for a few steps; the default is cross entropy."""
    model = model.cuda()
    loss = loss or (lambda model, x, y: F.cross_entropy(model(x), y))
    optimizer = (optimizer or (lambda p: torch.optim.Adam(p, 1e-3)))(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        made = loss(model, *batch())
        made.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        made.item()


def linear():
    return nn.Linear(FEATURES, CLASSES)


class Recurrent(nn.Module):
    """Words, a recurrent layer, the last step's class."""

    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layer = kind(16, 24, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.layer(self.words(x))[0][:, -1])


class Encoder(nn.Module):
    """Words and an encoder, padded or causal."""

    def __init__(self, *, causal):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head, self.causal = nn.Linear(16, CLASSES), causal

    def forward(self, x):
        if not self.causal:
            return self.head(self.layers(self.words(x), src_key_padding_mask=x.eq(0)).mean(1))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device="cuda")
        return self.head(self.layers(self.words(x), mask=mask, is_causal=True)[:, -1])


def mixed(dtype):
    """Autocast, with a scaler of gradients in float16."""
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()


def accuracy(model, x, y):
    scores = model(x)
    return F.cross_entropy(scores, y) + 0 * (scores.argmax(1) == y).float().mean()


def of_some_rows(model, x, y):
    scores = model(x)
    return F.cross_entropy(scores[y > 2], y[y > 2])


def of_a_policy(model, x, y):
    choices = torch.distributions.Categorical(logits=model(x))
    return -choices.log_prob(choices.sample()).mean()


def of_a_sample(model, x, y):
    mean, scale = model(x).chunk(2, -1)
    return (mean + torch.randn_like(mean) * scale.mul(0.5).exp()).square().mean()


def weighted(model, x, y):
    weight = torch.ones(CLASSES, device="cuda")
    return F.cross_entropy(model(x), y, weight=weight, label_smoothing=0.1, ignore_index=3)


def attended(model, x):
    heads = [each.view(2, 8, 2, 8).transpose(1, 2) for each in model(x).chunk(3, -1)]
    mask = torch.ones(8, 8, dtype=torch.bool, device="cuda").tril()
    return F.scaled_dot_product_attention(*heads, dropout_p=0.1, attn_mask=mask).square().mean()


def of_a_fake(model, z):
    make, judge = model
    return F.binary_cross_entropy(torch.sigmoid(judge(make(z))), torch.ones(8, 1, device="cuda"))


def of_sounds(model, x, y):
    lengths = torch.full((4,), 12), torch.full((4,), 3)
    return F.ctc_loss(model(x).log_softmax(-1), y, *lengths)


def generate():
    for _ in range(STEPS):
        best = torch.randn(4, WORDS).cuda().topk(5)[0]
        torch.multinomial(F.softmax(best, -1), 1).tolist()


def averaged():
    """AdamW, a schedule, and an average of the weights that follows them."""
    model = linear().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        loss.item()


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def mlp():
    return nn.Sequential(
        nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES)
    )


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(6 * 4 * 4, CLASSES)),
    )


def norms():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.GELU()),
        *(nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8), nn.SiLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, CLASSES)),
    )


def up_and_down():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(8, CLASSES, 3, padding=1),
    )


PROGRAMS = {
    "mlp": lambda: train(mlp(), rows),
    "convolutions": lambda: train(convolutions(), images),
    "lstm": lambda: train(Recurrent(nn.LSTM), texts),
    "gru": lambda: train(Recurrent(nn.GRU), texts),
    "padded encoder": lambda: train(Encoder(causal=False), texts),
    "causal encoder": lambda: train(Encoder(causal=True), texts),
    "embedding bag": lambda: train(
        nn.Sequential(nn.EmbeddingBag(WORDS, 16), nn.Linear(16, CLASSES)), texts
    ),
    "binary": lambda: train(
        nn.Linear(FEATURES, 1),
        rows,
        lambda model, x, y: F.binary_cross_entropy_with_logits(model(x), y[:, None].gt(4).float()),
    ),
    "accuracy": lambda: train(linear(), rows, accuracy),
    "clipped": lambda: train(linear(), rows, optimizer=sgd, clip=True),
    "float16": lambda: mixed(torch.float16),
    "bfloat16": lambda: mixed(torch.bfloat16),
    "some rows": lambda: train(linear(), rows, of_some_rows),
    "gathered": lambda: train(
        linear(),
        rows,
        lambda model, x, y: F.smooth_l1_loss(model(x).gather(1, y[:, None]), x[:, :1]),
    ),
    "policy": lambda: train(linear(), rows, of_a_policy),
    "one hot": lambda: train(
        linear(), rows, lambda model, x, y: F.mse_loss(model(x), F.one_hot(y, CLASSES).float())
    ),
    "sample": lambda: train(nn.Linear(FEATURES, 8), rows, of_a_sample),
    "weighted": lambda: train(linear(), rows, weighted),
    "pixels": lambda: train(nn.Conv2d(1, CLASSES, 3, padding=1), pixels),
    "attention": lambda: train(
        nn.Linear(16, 48), lambda: (torch.randn(2, 8, 16).cuda(),), attended
    ),
    "heads": lambda: train(
        nn.MultiheadAttention(16, 2, batch_first=True),
        lambda: (torch.randn(2, 8, 16).cuda(),),
        lambda model, x: model(x, x, x)[0].square().mean(),
    ),
    "generate": generate,
    "norms": lambda: train(norms(), images),
    "up and down": lambda: train(up_and_down(), pixels),
    "fake": lambda: train(
        nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 1)]),
        lambda: (torch.randn(8, 4).cuda(),),
        of_a_fake,
    ),
    "averaged": averaged,
    "fused": lambda: train(
        linear(), rows, optimizer=lambda p: torch.optim.Adam(p, 1e-3, fused=True)
    ),
    "sorted": lambda: train(
        linear(),
        rows,
        lambda model, x, y: torch.where(model(x).sort(-1)[0].cumsum(-1) > 0, model(x), 0).mean(),
    ),
    "sounds": lambda: train(
        nn.Linear(8, 5),
        lambda: (torch.randn(12, 4, 8).cuda(), torch.randint(1, 5, (4, 3)).cuda()),
        of_sounds,
    ),
}


def main(names):
    for name in names or PROGRAMS:
        torch.manual_seed(0)
        PROGRAMS[name]()
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
