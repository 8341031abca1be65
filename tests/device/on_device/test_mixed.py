"""Host and device tensors in one op: torch's words with a hint, before a byte is copied."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jgpu.device import current
from jgpu.device.likenative import mixed
from jgpu.device.recording.ops import ANSWERED, HOST_ARGUMENTS, STREAM, WAIT, info_of
from jgpu.device.tensor import DeviceTensor

MODEL = "The model is on the CPU, and its input on the GPU: model.cuda() moves the model."
INPUT = "The model is on the GPU, and a tensor given to it is not: x = x.cuda() moves it."
EITHER = 'One of the tensors is on the CPU: x = x.cuda(), or x.to("cuda"), moves it.'
PARAMETERS = (
    "Input and parameter tensors are not at the same device, found input tensor at {} and "
    "parameter tensor at {}"
)
POINTWISE = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)


def compared(name, own, others, wrapper):
    return (
        f"Expected all tensors to be on the same device, but got {name} is on {own}, different "
        f"from other tensors on {others} (when checking argument in method wrapper_CUDA_{wrapper})"
    )


def on(device, *shape):
    return torch.ones(*shape, device=device)


def labels(device, *shape):
    return torch.zeros(*shape, dtype=torch.long, device=device)


#: model's maker, input's maker, and what is said with the model on the CPU and on the GPU
MODELS = {
    "linear": (
        lambda: nn.Linear(3, 2), lambda d: on(d, 4, 3),
        compared("mat1", "cuda:0", "cpu", "addmm"), compared("mat1", "cpu", "cuda:0", "addmm"),
    ),
    "linear without bias": (
        lambda: nn.Linear(3, 2, bias=False), lambda d: on(d, 4, 3),
        compared("mat2", "cpu", "cuda:0", "mm"), compared("mat2", "cuda:0", "cpu", "mm"),
    ),
    "lstm": (
        lambda: nn.LSTM(3, 2), lambda d: on(d, 5, 4, 3),
        PARAMETERS.format("cuda:0", "cpu"), PARAMETERS.format("cpu", "cuda:0"),
    ),
    "gru": (
        lambda: nn.GRU(3, 2), lambda d: on(d, 5, 4, 3),
        PARAMETERS.format("cuda:0", "cpu"), PARAMETERS.format("cpu", "cuda:0"),
    ),
    "lstm cell": (
        lambda: nn.LSTMCell(3, 2), lambda d: on(d, 4, 3),
        compared("mat2", "cpu", "cuda:0", "mm"), compared("mat1", "cpu", "cuda:0", "addmm"),
    ),
    "convolution": (
        lambda: nn.Conv2d(3, 4, 3), lambda d: on(d, 1, 3, 8, 8),
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the "
        "same",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the "
        "same or input should be a MKLDNN tensor and weight is a dense tensor",
    ),
    "batch norm": (
        lambda: nn.BatchNorm1d(3), lambda d: on(d, 4, 3),
        compared("weight", "cpu", "cuda:0", "_cudnn_batch_norm"),
        compared("weight", "cuda:0", "cpu", "_native_batch_norm"),
    ),
    "layer norm": (
        lambda: nn.LayerNorm(3), lambda d: on(d, 4, 3),
        compared("weight", "cpu", "cuda:0", "_native_layer_norm"),
        compared("weight", "cuda:0", "cpu", "_native_layer_norm"),
    ),
    "embedding": (
        lambda: nn.Embedding(4, 2), lambda d: labels(d, 3),
        compared("index", "cuda:0", "cpu", "_index_select"),
        compared("index", "cpu", "cuda:0", "_index_select"),
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8), lambda d: on(d, 5, 1, 4),
        compared("mat1", "cuda:0", "cpu", "addmm"), compared("mat1", "cpu", "cuda:0", "addmm"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_its_input_on_two_devices(name, training):
    make, give, on_cpu, on_gpu = MODELS[name]
    with pytest.raises(RuntimeError) as info:
        make().train(training)(give("cuda"))
    assert str(info.value) == f"{on_cpu}\n{MODEL}"
    with pytest.raises(RuntimeError) as info:
        make().train(training).cuda()(give("cpu"))
    assert str(info.value) == f"{on_gpu}\n{INPUT}"


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cuda")])
def test_a_mode_makes_no_difference(mode):
    with mode(), pytest.raises(RuntimeError, match=r"got mat1 is on cuda:0.*wrapper_CUDA_addmm"):
        nn.Linear(3, 2)(on("cuda", 4, 3))


X = on("cuda", 4, 3)
C = torch.ones(4, 3)

#: what is said of a host tensor beside a device tensor, neither of a model
CALLS = {
    "add": (lambda: X + C, POINTWISE),
    "add, the other way": (lambda: C + X, POINTWISE),
    "in place": (lambda: C.add_(X), POINTWISE),
    "in place, a number": (lambda: torch.tensor(1.0).add_(X[0, 0]), POINTWISE),
    "where": (lambda: torch.where(X > 0, X, C), POINTWISE),
    "list": (lambda: torch._foreach_add([X], [C]), POINTWISE),
    "mse": (lambda: F.mse_loss(X, C), POINTWISE),
    "logits": (lambda: F.binary_cross_entropy_with_logits(X, C), POINTWISE),
    "allclose": (lambda: torch.allclose(X, C), POINTWISE),
    "put": (lambda: X.index_put((labels("cuda", 2),), C[:2]), POINTWISE),
    "matmul": (lambda: X @ C.T, compared("mat2", "cpu", "cuda:0", "mm")),
    "einsum": (lambda: torch.einsum("ij,kj->ik", X, C), compared("mat2", "cpu", "cuda:0", "bmm")),
    "cross entropy": (
        lambda: F.cross_entropy(X, labels("cpu", 4)),
        compared("target", "cpu", "cuda:0", "nll_loss_forward"),
    ),
    "weights of classes": (
        lambda: F.cross_entropy(X, labels("cuda", 4), torch.ones(3)),
        compared("weight", "cpu", "cuda:0", "nll_loss_forward"),
    ),
    "cat": (lambda: torch.cat([X, C]), compared("tensors", "cpu", "cuda:0", "cat")),
    "stack": (lambda: torch.stack([C, X]), compared("tensors", "cuda:0", "cpu", "cat")),
    "gather": (
        lambda: X.gather(1, labels("cpu", 4, 1)), compared("index", "cpu", "cuda:0", "gather")
    ),
    "scatter": (
        lambda: X.scatter_(1, labels("cpu", 4, 1), 1.0),
        compared("index", "cpu", "cuda:0", "scatter__value"),
    ),
    "a number as index": (
        lambda: X.index_select(0, torch.tensor(1)),
        compared("index", "cpu", "cuda:0", "_index_select"),
    ),
    "equal": (lambda: torch.equal(X, C), compared("other", "cpu", "cuda:0", "_equal")),
    "out": (lambda: torch.mm(X, X.T, out=torch.ones(4, 4)),
            compared("self", "cuda:0", "cpu", "mm_out_out")),
    "mask": (
        lambda: X.masked_fill(C > 0, 0.0),
        "expected self and mask to be on the same device, but got mask on cpu and self on cuda:0",
    ),
    "an index on the device": (
        lambda: C[labels("cuda", 2)],
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "hidden state": (
        lambda: torch.lstm(X[None], [torch.ones(1, 4, 2)] * 2, [on("cuda", 8, 3), on("cuda", 8, 2)],
                           False, 1, 0.0, True, False, False),
        "Input and hidden tensors are not at the same device, found input tensor at cuda:0 and "
        "hidden tensor at cpu",
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention(X[None], C[None], C[None]),
        "Expected query, key, and value to have the same device type, but got query.device: cuda:0 "
        "key.device: cpu and value.device: cpu instead.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_tensors_on_two_devices(name):
    call, said = CALLS[name]
    with pytest.raises(RuntimeError) as info:
        call()
    assert str(info.value) == f"{said}\n{EITHER}"
    assert X.tolist() == C.tolist() == [[1.0] * 3] * 4


def test_what_natively_may_be_on_the_cpu_may_be_there():
    one, twos = torch.tensor(1.0), torch.tensor(2.0, dtype=torch.float64)
    assert (X + one).sum().item() == 24
    assert (X * twos).dtype is torch.float32
    assert (one - X[0, 0]).device.type == "cuda"
    assert torch.where(X > 1, X, one).sum().item() == 12
    assert X.masked_fill(X > 0, twos).sum().item() == 24
    assert X[torch.tensor([0, 1])].shape == (2, 3)
    assert X[C > 0].shape == (12,)
    assert X.clone().index_put_((labels("cpu", 2),), one).sum().item() == 12
    probabilities = torch.tensor([1.0, 0.0, 1.0])
    assert torch.empty(3, device="cuda").bernoulli_(probabilities).tolist() == [1, 0, 1]
    assert nn.utils.rnn.pack_padded_sequence(X[None], torch.tensor([3]), True).data.shape == (3, 3)
    targets, lengths = torch.ones(1, 2, dtype=torch.long), (torch.tensor([4]), torch.tensor([2]))
    scores = on("cuda", 4, 1, 3).log_softmax(2)
    assert F.ctc_loss(scores, targets, *lengths).item() > 0
    assert [part.shape[0] for part in X.tensor_split(torch.tensor([1, 2]))] == [1, 1, 2]


def test_nothing_is_copied_for_the_sake_of_an_error():
    endless = torch.zeros(1).expand(1 << 40)
    X.sum().item()
    sent = current.session.connection.bytes_sent
    for call in (lambda: X[0, :1] * endless, lambda: torch.cat([X[0], endless])):
        with pytest.raises(RuntimeError, match="on the same device"):
            call()
    assert current.session.connection.bytes_sent == sent


def test_no_op_takes_a_host_tensor_without_a_word():
    """Every op with two tensors: it raises, or torch's own composite of it decides."""
    silent, tried = set(), 0
    for info in every_op():
        args = [
            given(i, argument, info) for i, argument in enumerate(info.arguments)
            if not argument.kwarg_only
        ]  # fmt: skip
        tensors = [t for a in args for t in (a if isinstance(a, list) else [a])]
        if len({type(t) for t in tensors if isinstance(t, torch.Tensor)}) < 2:
            continue
        tried += 1
        try:
            mixed.check(info, tuple(args), {})
        except RuntimeError:
            continue
        if not mixed.is_composite(info):
            silent.add(info.name)
    assert tried > 500
    assert silent <= HOST_ARGUMENTS


def every_op():
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        if full.startswith("aten::"):
            info = info_of(getattr(getattr(torch.ops.aten, name), overload or "default"))
            if info.kind in (STREAM, WAIT, ANSWERED) and info.takes_tensor:
                yield info


def given(place, argument, info):
    """A device tensor in the first place, host tensors further on."""
    first = place == min(info.positions[a.name] for a in info.arguments if "Tensor" in str(a.type))
    tensor = X if first else C
    kind = str(argument.type)
    if "Tensor" not in kind:
        return None
    return [tensor] if kind.startswith("List") else tensor


@pytest.mark.parametrize(
    ("op", "wrapper"),
    [
        ("addmm", "addmm"), ("bmm", "bmm"), ("cat", "cat"), ("mm", "mm"),
        ("index_select", "_index_select"), ("nll_loss_forward", "nll_loss_forward"),
        ("native_layer_norm", "_native_layer_norm"), ("scatter_.value", "scatter__value"),
        ("_slow_conv2d_forward", "__slow_conv2d_forward"), ("gather", "gather"),
    ],
)  # fmt: skip
def test_wrappers_have_the_names_that_people_report(op, wrapper):
    """Each is quoted in some project's bug reports from a CUDA build."""
    assert mixed._declared(op) == (f"wrapper_CUDA_{wrapper}", True)


def test_a_host_tensor_is_none_of_ours():
    assert type(X) is DeviceTensor
    assert type(C) is torch.Tensor
