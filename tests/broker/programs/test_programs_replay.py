"""Training steps of ordinary models, recorded on native CPU torch, replay to the same bits."""

import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder
from sketch import CPU, all_live
from torch import nn

from jgpu.broker.executor.programs import Buffer, RunContext, define

X = torch.linspace(-2, 2, 48).view(6, 8)
Y = torch.tensor([0, 3, 1, 2, 2, 1])
IMAGES = torch.linspace(-1, 1, 4 * 3 * 256).view(4, 3, 16, 16).sin()
SEQUENCE = torch.linspace(-1, 1, 120).view(5, 3, 8).cos()
TOKENS = torch.arange(21).view(3, 7) % 20
#: outputs whose bytes torch itself leaves partly unset
UNSET = {"aten::mkldnn_rnn_layer.default"}


def trainer(model, loss, optimizer=None, clip=False):
    parameters = list(model.parameters())
    optimizer = optimizer(parameters) if optimizer else torch.optim.SGD(parameters, lr=0.01)

    def step():
        optimizer.zero_grad()
        loss(model).backward()
        if clip:
            nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def record(make):
    torch.manual_seed(1)
    step = make()
    step()
    step()
    with Recorder(lift=True) as recorder:
        step()
    return recorder.recording()


def same(one, other):
    """Whether they hold the same bits, or both no number."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def replay(recording, runs=3):
    """The first run goes step by step, the second is compiled, the third tells small values.

    Then two more, without the accelerator where there is one. All must agree with native.
    """
    definition = define(recording.data, "cpu")
    makers = {s: step.info.name for step in definition.plan.steps for s in step.outs}
    for number in (*range(runs), *range(1, runs)):
        if number == 1:
            for variant in definition._variants.values():
                variant.straight = None
        buffers = [Buffer(k, t.clone()) for k, t in enumerate(recording.inputs)]
        generator = torch.Generator()
        generator.set_state(recording.rng)
        run, told = RunContext(CPU, {0: generator}, work=number + 1), {}
        if number == 2:
            run.wanted = tuple(range(definition.fresh))
            run.tell = lambda slot, made, told=told: told.setdefault(slot, made.clone())
        outcome = definition.run(buffers, recording.params, all_live(definition), b"", run)
        assert outcome.failures == []
        assert outcome.learnt == ()
        for buffer, after in zip(buffers, recording.after, strict=False):
            assert torch.equal(buffer.bytes(), after)
        for slot, output in enumerate(outcome.outputs, definition.inputs):
            after = recording.after[slot]
            assert output.stride() == after.stride()
            if makers[slot] not in UNSET:
                assert same(output, after)
                assert same(told.get(slot - definition.inputs, after), after)
    return definition


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def classify(model):
    return F.cross_entropy(model(X), Y)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "adam-fused": lambda p: torch.optim.Adam(p, fused=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True, amsgrad=True),
    "adagrad-fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "adafactor": torch.optim.Adafactor,
    **{
        f"{name.lower()}{'-foreach' if foreach else ''}": (
            lambda p, name=name, foreach=foreach: getattr(torch.optim, name)(p, foreach=foreach)
        )
        for name in (
            *("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "RMSprop"),
            *("Adadelta", "Adagrad", "Rprop"),
        )
        for foreach in (False, True)
    },
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_mlp_trains_with_every_optimizer(name):
    replay(record(lambda: trainer(mlp(), classify, OPTIMIZERS[name], clip=True)))


def cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(32, 4)),
    )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolutional_network_trains_in_either_layout(layout):
    images = IMAGES.to(memory_format=layout)
    model = cnn().to(memory_format=layout)
    replay(record(lambda: trainer(model, lambda m: F.cross_entropy(m(images), Y[:4]))))


def test_batch_normalisation_in_evaluation_has_empty_statistics():
    model = cnn()
    model(IMAGES)
    model.eval()
    replay(record(lambda: trainer(model, lambda m: F.cross_entropy(m(IMAGES), Y[:4]))))


IMAGE_LAYERS = {
    "pooling": [nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.LPPool2d(2, 2)],
    "transposed": [nn.ConvTranspose2d(4, 3, 3), nn.Upsample(scale_factor=2), nn.InstanceNorm2d(3)],
    "padding": [nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.GroupNorm(2, 4), nn.SiLU()],
    "adaptive": [nn.AdaptiveMaxPool2d(3), nn.PReLU(), nn.PixelShuffle(2)],
}


@pytest.mark.parametrize("name", IMAGE_LAYERS)
def test_image_layers_train(name):
    def make():
        model = nn.Sequential(nn.Conv2d(3, 4, 3), *IMAGE_LAYERS[name])
        return trainer(model, lambda m: m(IMAGES).pow(2).mean())

    replay(record(make))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("kwargs", [{}, {"num_layers": 2, "bidirectional": True}])
def test_recurrent_networks_train(kind, kwargs):
    make = getattr(nn, kind)
    replay(record(lambda: trainer(make(8, 6, **kwargs), lambda m: m(SEQUENCE)[0].sum())))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens, mask=None):
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=mask is not None))


@pytest.mark.parametrize("causal", [False, True])
def test_a_transformer_trains(causal):
    mask = nn.Transformer.generate_square_subsequent_mask(7) if causal else None

    def loss(model):
        return F.cross_entropy(model(TOKENS, mask).flatten(0, 1), TOKENS.flatten())

    adamw = OPTIMIZERS["adamw-foreach"]
    replay(record(lambda: trainer(Transformer(), loss, adamw, clip=True)))


def test_fused_attention_trains():
    def loss(model):
        heads = model(SEQUENCE).view(5, 3, 3, 4, 2).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*heads, is_causal=True).sum()

    recording = record(lambda: trainer(nn.Linear(8, 24), loss))
    assert "aten::_scaled_dot_product_flash_attention_for_cpu.default" in recording.ops
    replay(recording)


def test_a_variational_autoencoder_trains():
    def loss(model):
        mean, log_variance = model[0](X).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        image = model[1](code).sigmoid()
        kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        return F.binary_cross_entropy(image, X.sigmoid(), reduction="sum") + kl

    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(3, 8))
    replay(record(lambda: trainer(model, loss)))


LOSSES = {
    "mse": lambda w: F.mse_loss(w, X),
    "huber": lambda w: F.huber_loss(w, X) + F.smooth_l1_loss(w, X) + F.l1_loss(w, X),
    "bce": lambda w: F.binary_cross_entropy_with_logits(w, X.sigmoid()),
    "kl": lambda w: F.kl_div(w.log_softmax(1), X.softmax(1), reduction="batchmean"),
    "weighted": lambda w: F.cross_entropy(w, Y, weight=torch.ones(8), label_smoothing=0.1),
    "ignored": lambda w: F.cross_entropy(w, Y.masked_fill(Y == 2, -100)),
    "segmented": lambda w: F.cross_entropy(w.view(2, 3, 2, 4), Y.repeat(3)[:16].view(2, 2, 4) % 3),
    "margins": lambda w: F.multi_margin_loss(w, Y) + F.soft_margin_loss(w, X.sign()),
    "triplet": lambda w: F.triplet_margin_loss(w, X, X.flip(0)) + F.pdist(w).sum(),
    "ctc": lambda w: F.ctc_loss(
        w.log_softmax(1)[:, None], torch.tensor([[1, 2, 3]]), torch.tensor([6]), torch.tensor([3])
    ),
    "indexing": lambda w: (
        w[Y].sum() + w[:, 1:3].pow(2).sum() + w[2].sum() + w.gather(1, Y[:, None]).sum()
    ),
    "scattering": lambda w: (
        torch.zeros(6, 8).scatter_add(0, Y[:, None].expand(6, 8), w).sum()
        + torch.zeros(6, 8).index_add(0, Y, w).sum()
    ),
    "masking": lambda w: w.masked_fill(X > 0, 0).sum() + torch.where(X > 0, w, -w).sum(),
    "data-dependent": lambda w: w[X > 0].sum() + w.abs().topk(3)[0].sum(),
    "sorting": lambda w: w.sort(1)[0][:, 0].sum() + w.max(1)[0].sum() + w.cumsum(0).sum(),
    "embedding": lambda w: F.embedding(Y, w, padding_idx=1, scale_grad_by_freq=True).sum(),
    "bags": lambda w: F.embedding_bag(Y, w, torch.tensor([0, 2])).sum(),
    "largest in bags": lambda w: F.embedding_bag(Y, w, torch.tensor([0, 2]), mode="max").sum(),
    "lengths": lambda w: torch.segment_reduce(w, "max", lengths=torch.tensor([1, 2, 3])).sum(),
    "bounds": lambda w: torch.segment_reduce(w, "mean", offsets=torch.tensor([0, 2, 2, 6])).sum(),
    "fourier": lambda w: torch.fft.irfft(torch.fft.rfft(w)).sum() + torch.fft.fft2(w).abs().sum(),
    "linear algebra": lambda w: (
        torch.linalg.svd(w)[1].sum()
        + torch.linalg.qr(w)[1].sum()
        + torch.linalg.solve(w @ w.t() + 9 * torch.eye(6), X).sum()
        + torch.cdist(w, X).sum()
    ),
    "activations": lambda w: sum(
        f(w).sum()
        for f in (
            *(F.elu, F.selu, F.leaky_relu, F.softplus, F.hardtanh, F.hardsigmoid, F.hardswish),
            *(F.mish, F.silu, F.logsigmoid, F.glu, F.gelu, torch.sigmoid, torch.tanh),
        )
    ),
    "random": lambda w: (
        (w * torch.rand(6, 8)).sum()
        + (w * torch.rand_like(X)).sum()
        + w[torch.randperm(6)].sum()
        + (w * torch.bernoulli(X.sigmoid())).sum()
        + (w * torch.randint(0, 3, (6, 8))).sum()
        + F.gumbel_softmax(w, hard=True).sum()
    ),
    "factories": lambda w: (
        (w * torch.arange(8)).sum() + (w @ torch.eye(8)).sum() + (w * torch.full((8,), 2.0)).sum()
    ),
    "dtypes": lambda w: (
        (w.double() @ X.double().t()).sum() + (w.bfloat16() @ X.bfloat16().t()).sum()
    ),
    "complex": lambda w: (
        (torch.view_as_complex(w.view(6, 4, 2)) * torch.view_as_complex(X.view(6, 4, 2)).conj())
        .abs()
        .sum()
    ),
    "resized": lambda w: w.sum() + torch.add(X, X, out=torch.empty(0)).sum(),
    "in place": lambda w: w.clone().mul_(2).add_(1)[1:].relu_().sum(),
    "norms": lambda w: (
        F.layer_norm(w, (8,)).sum() + F.rms_norm(w, (8,)).sum() + F.normalize(w).sum() + w.norm()
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_tensor_arithmetic_train(name):
    def make():
        weight = nn.Parameter(torch.randn(6, 8))
        return trainer(nn.ParameterList([weight]), lambda m: LOSSES[name](m[0]))

    replay(record(make))


def test_lifted_numbers_are_parameters_of_one_program():
    def make():
        return trainer(mlp(), classify, OPTIMIZERS["adam"])

    torch.manual_seed(1)
    step = make()
    step()
    hashes = set()
    for _ in range(3):
        with Recorder(lift=True) as recorder:
            step()
        hashes.add(define(recorder.recording().data, "cpu").hash)
    assert len(hashes) == 1
