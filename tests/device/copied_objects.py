"""The objects that `copied` copies: each a function of the device, by name."""

import collections
from collections import OrderedDict, defaultdict, namedtuple

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, rnn

OBJECTS = {}


def catalogued(name):
    """Add the function to the catalogue."""

    def add(function):
        OBJECTS[name] = function
        return function

    return add


def each(**functions):
    """Add functions of a device by their names."""
    OBJECTS.update({name.replace("_", " "): function for name, function in functions.items()})


def numbers(device, *shape, dtype=torch.float32):
    """1, 2, 3 ... as a leaf of its own storage."""
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1, dtype=torch.float32).view(shape).to(dtype).to(device).clone()


def with_(value, **attributes):
    """The object with these attributes."""
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


def with_grad(leaf):
    """The leaf, after a backward."""
    (leaf * leaf).sum().backward()
    return leaf


def ignored(*given):
    """A hook."""


def hooked(leaf):
    """The leaf with a hook of each kind."""
    leaf.register_hook(ignored)
    leaf.register_post_accumulate_grad_hook(ignored)
    return leaf


# -- tensors -------------------------------------------------------------------------------------

each(
    float32=lambda d: numbers(d, 2, 3),
    float64=lambda d: numbers(d, 2, 3, dtype=torch.float64),
    bfloat16=lambda d: numbers(d, 2, 3, dtype=torch.bfloat16),
    int64=lambda d: numbers(d, 2, 3, dtype=torch.int64),
    bool=lambda d: numbers(d, 2, 3, dtype=torch.bool),
    complex64=lambda d: numbers(d, 2, 3, dtype=torch.complex64),
    uint16=lambda d: numbers(d, 4, dtype=torch.uint16),
    float8=lambda d: numbers(d, 4, dtype=torch.float8_e4m3fn),
)

each(
    scalar=lambda d: torch.tensor(2.5).to(d),
    empty=lambda d: torch.zeros(0, 3).to(d),
    empty_slice=lambda d: numbers(d, 4, 2)[2:2].t(),
    views=lambda d: (lambda t: [t, t[1:], t.t(), t[:, 1], t.view(-1)])(numbers(d, 3, 4)),
    view_alone=lambda d: numbers(d, 3, 4)[1:, 1:3],
    views_of_types=lambda d: (lambda t: [t, t.view(torch.int32)])(numbers(d, 4)),
    expanded=lambda d: numbers(d, 1, 3).expand(4, 3),
    overlapping=lambda d: numbers(d, 6).as_strided((4, 3), (1, 1)),
    channels_last=lambda d: numbers(d, 2, 3, 2, 2).to(memory_format=torch.channels_last),
    conjugate=lambda d: torch.complex(numbers(d, 2), numbers(d, 2)).conj(),
    negative=lambda d: torch.complex(numbers(d, 2), numbers(d, 2)).conj().imag,
    leaf=lambda d: numbers(d, 3).requires_grad_(),
    leaf_with_gradient=lambda d: with_grad(numbers(d, 3).requires_grad_()),
    leaf_with_hooks=lambda d: hooked(numbers(d, 3).requires_grad_()),
    result=lambda d: numbers(d, 3).requires_grad_() * 2,
    result_that_keeps_its_gradient=lambda d: (lambda t: (t.retain_grad(), t)[1])(
        numbers(d, 3).requires_grad_() * 2
    ),
    view_of_a_leaf=lambda d: numbers(d, 3).requires_grad_()[1:],
    gradient_with_a_graph=lambda d: (
        lambda t: ((t**3).sum().backward(create_graph=True), t)[1]
    )(numbers(d, 3).requires_grad_()),
    with_attributes=lambda d: with_(numbers(d, 3), note="n", other=numbers(d, 2), many=[1, [2]]),
    leaf_with_everything=lambda d: with_(
        hooked(with_grad(numbers(d, 3).requires_grad_())), note="n", other=numbers(d, 2)
    ),
    with_a_view_as_attribute=lambda d: (lambda t: with_(t, row=t[1:]))(numbers(d, 3)),
    with_itself_as_attribute=lambda d: (lambda t: with_(t, me=t))(numbers(d, 3)),
    made_in_inference_mode=lambda d: torch.inference_mode()(lambda: numbers(d, 3) * 2)(),
    coordinates=lambda d: numbers(d, 2, 2).to_sparse(),
    compressed=lambda d: numbers(d, 2, 2).to_sparse_csr(),
    itself_in_a_list=lambda d: (lambda t: with_(t, many=[t, {"t": t}]))(numbers(d, 3)),
    twins=lambda d: (lambda t, u: [with_(t, other=u), with_(u, other=t)])(
        numbers(d, 2), numbers(d, 3)
    ),
    jagged=lambda d: torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged, device=d
    ),
    of_the_host=lambda d: with_(numbers("cpu", 3), note="n"),
    mixed_places=lambda d: [numbers("cpu", 3), numbers(d, 3)],
    untyped_storage=lambda d: numbers(d, 3).untyped_storage(),
    typed_storage=lambda d: numbers(d, 3)._typed_storage(),
    storage_and_tensor=lambda d: (lambda t: [t, t.untyped_storage()])(numbers(d, 3)),
)  # fmt: skip

# -- parameters ----------------------------------------------------------------------------------

each(
    parameter=lambda d: nn.Parameter(numbers(d, 3)),
    parameter_with_gradient=lambda d: with_grad(nn.Parameter(numbers(d, 3))),
    parameter_with_hooks=lambda d: hooked(nn.Parameter(numbers(d, 3))),
    parameter_with_attributes=lambda d: with_(nn.Parameter(numbers(d, 3)), note=[1]),
    parameter_with_everything=lambda d: with_(
        hooked(with_grad(nn.Parameter(numbers(d, 3)))), note="n", other=numbers(d, 2)
    ),
    frozen_parameter=lambda d: nn.Parameter(numbers(d, 3), requires_grad=False),
    parameter_of_a_view=lambda d: (lambda t: [nn.Parameter(t[1:]), t])(numbers(d, 3)),
    turned_parameter=lambda d: nn.Parameter(numbers(d, 2, 3).t()),
    expanded_parameter=lambda d: nn.Parameter(numbers(d, 1, 3).expand(2, 3)),
    strided_parameter=lambda d: nn.Parameter(numbers(d, 4, 4)[::2, 1:]),
    complex_parameter=lambda d: nn.Parameter(numbers(d, 2, dtype=torch.complex64).conj()),
    empty_parameter=lambda d: nn.Parameter(numbers(d, 3)[:0]),
    parameter_and_its_data=lambda d: (lambda p: [p, p.data, p.detach()])(
        nn.Parameter(numbers(d, 3))
    ),
    moved_parameter=lambda d: nn.Linear(2, 1).to(d).weight,
    buffer=lambda d: nn.Buffer(numbers(d, 3)),
    passing_buffer=lambda d: nn.Buffer(numbers(d, 3), persistent=False),
    lazy_parameter=lambda d: nn.UninitializedParameter(device=d),
    lazy_buffer=lambda d: nn.UninitializedBuffer(device=d),
)  # fmt: skip

# -- containers ----------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


class Slotted:
    """Attributes in slots."""

    __slots__ = ("__weakref__", "first", "second")


class Reduced:
    """Says itself how it is copied."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return Reduced, (self.tensor,)


each(
    list=lambda d: (lambda t: [t, t, {"a": (t, numbers(d, 2))}])(numbers(d, 2)),
    ordered=lambda d: OrderedDict(a=numbers(d, 1), b=numbers(d, 2)),
    default=lambda d: defaultdict(list, a=[numbers(d, 1)]),
    named=lambda d: (lambda t: Pair(t, t))(numbers(d, 2)),
    deque=lambda d: [*collections.deque([numbers(d, 2)], maxlen=3)],
    slots=lambda d: (lambda t: with_(Slotted(), first=t, second=t))(numbers(d, 2)),
    reduced=lambda d: Reduced(numbers(d, 2)),
    packed=lambda d: rnn.pack_sequence([numbers(d, 3), numbers(d, 2)]),
    dataset=lambda d: torch.utils.data.TensorDataset(numbers(d, 3, 2), numbers(d, 3)),
    distribution=lambda d: torch.distributions.Normal(numbers(d, 2), numbers(d, 2)),
    generator=lambda d: torch.Generator(d).manual_seed(3),
    generator_that_drew=lambda d: (
        lambda g: (torch.rand(5, generator=g, device=d), [g, g])[1]
    )(torch.Generator(d).manual_seed(3)),
    device=lambda d: [numbers(d, 1).device, torch.float16, torch.Size([1])],
)  # fmt: skip

# -- modules -------------------------------------------------------------------------------------


def trained(net, *inputs, dtype=None):
    """The module after a backward."""
    made = net(*inputs)
    while isinstance(made, tuple):
        made = made[0]
    made.sum().backward()
    return net


class Tied(nn.Module):
    """Holds tensors in every way in which a module can."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.zeros(2))
        self.register_buffer("passing", torch.ones(1), persistent=False)
        self.kept = [self.first.bias, torch.ones(3)]

    def forward(self, x):
        """Two layers of one weight."""
        self.steps += 1
        return self.second(self.first(x))


@catalogued("tied module")
def _tied(d):
    net = Tied().to(d)
    net.row = net.first.weight.data[0]
    return trained(net, numbers(d, 1, 2))


@catalogued("hooked module")
def _hooked_module(d):
    net = nn.Linear(2, 1).to(d)
    net.register_forward_hook(ignored)
    hooked(net.weight)
    return net


class Generating(nn.Module):
    """Holds a generator and a tensor that is not registered."""

    def __init__(self, d):
        super().__init__()
        self.generator = torch.Generator(d).manual_seed(1)
        self.plain = numbers(d, 2)


each(
    linear=lambda d: trained(nn.Linear(2, 1).to(d), numbers(d, 3, 2)),
    sequence=lambda d: trained(
        nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.0)).to(d), numbers(d, 3, 2)
    ),
    parameter_list=lambda d: nn.ParameterList([numbers(d, 2), numbers(d, 3)]),
    parameter_dict=lambda d: nn.ParameterDict({"a": numbers(d, 2), "b": numbers(d, 3)}),
    module_lists=lambda d: nn.ModuleDict({"a": nn.ModuleList([nn.Linear(1, 1)])}).to(d),
    generating=Generating,
    lstm=lambda d: trained(nn.LSTM(2, 3, 2).to(d), numbers(d, 2, 1, 2)),
    gru=lambda d: trained(nn.GRU(2, 2).to(d), numbers(d, 2, 1, 2)),
    embedding=lambda d: nn.Embedding(3, 2, padding_idx=0).to(d),
    attention=lambda d: nn.MultiheadAttention(4, 2).to(d),
    pruned=lambda d: prune.l1_unstructured(nn.Linear(2, 2).to(d), "weight", 1),
    spectral=lambda d: parametrizations.spectral_norm(nn.Linear(2, 2)).to(d),
    weight_normed=lambda d: parametrizations.weight_norm(nn.Linear(2, 2)).to(d),
    orthogonal=lambda d: parametrizations.orthogonal(nn.Linear(2, 2)).to(d),
    lazy_module=lambda d: nn.LazyLinear(3, device=d),
    moved_lazy_module=lambda d: nn.LazyLinear(3).to(d),
    lazy_norm=lambda d: nn.LazyBatchNorm1d(device=d),
    state=lambda d: nn.BatchNorm1d(2).to(d).state_dict(),
    averaged=lambda d: torch.optim.swa_utils.AveragedModel(nn.Linear(2, 1).to(d)),
    half=lambda d: nn.Linear(2, 1).to(d).half(),
)  # fmt: skip

# -- optimizers ----------------------------------------------------------------------------------


def stepped(d, make, **options):
    """A module and its optimizer after two steps."""
    net = nn.Linear(2, 1).to(d)
    optimizer = make(net.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()

        def closure():
            loss = net(numbers(d, 3, 2)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return net, optimizer


@catalogued("scheduled")
def _scheduled(d):
    net, optimizer = stepped(d, torch.optim.SGD, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scheduler.step()
    return [net, optimizer, scheduler.state_dict()]


@catalogued("scaler")
def _scaler(d):
    scaler = torch.amp.GradScaler(d, init_scale=8.0)
    net, optimizer = stepped(d, torch.optim.SGD, lr=0.1)
    scaler.scale(net(numbers(d, 1, 2)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler


each(
    momentum=lambda d: stepped(d, torch.optim.SGD, lr=0.1, momentum=0.9)[1],
    momentum_with_its_module=lambda d: stepped(d, torch.optim.SGD, lr=0.1, momentum=0.9),
    adam=lambda d: stepped(d, torch.optim.Adam, lr=0.1),
    adam_state=lambda d: stepped(d, torch.optim.Adam, lr=0.1)[1].state_dict(),
    amsgrad=lambda d: stepped(d, torch.optim.AdamW, lr=0.1, amsgrad=True)[1],
    lbfgs=lambda d: stepped(d, torch.optim.LBFGS, lr=0.1, max_iter=2)[1],
    fresh_optimizer=lambda d: torch.optim.Adam(nn.Linear(1, 1).to(d).parameters()),
    tensor_rate=lambda d: stepped(d, torch.optim.Adam, lr=torch.tensor(0.1)),
)  # fmt: skip
