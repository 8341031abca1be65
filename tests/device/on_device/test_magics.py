"""`%jgpu memory` in the process: whose the tensors are, and that looking changes nothing."""

import functools
import gc
import json
import random
import sys
import threading
import types
import weakref

import pytest
import torch
from torch import nn

from jgpu.device import current
from jgpu.device.magics import command, memory, tensors
from jgpu.device.magics.tensors import held

#: so large that nothing else of these tests has it
NUMBERS = 12_345


@pytest.fixture
def notebook(monkeypatch):
    """Makes a notebook's variables."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    yield lambda **variables: vars(main).update(variables)
    vars(main).clear()
    gc.collect()  # nested tensors are in circles, in some releases of torch


def made():
    return torch.full((NUMBERS,), 1.0, device="cuda")


def of_made():
    """What is said of the storages that `made` made."""
    current.session.catch_up()
    return [each for each in held(current.session) if each.nbytes == 4 * NUMBERS]


def holders():
    """The names of the one that there is, by kind."""
    (each,) = of_made()
    return each.names


class Something:
    """A person's own class."""

    __slots__ = ("slot",)


class Plain:
    """Another."""


def in_slot():
    one = Something()
    one.slot = made()
    return one


def in_attribute():
    one = Plain()
    one.inner = Plain()
    one.inner.x = made()
    return one


def in_closure():
    big = made()
    return lambda: big


def in_default():
    return lambda x=made(): x  # noqa: B008


def suspended():
    def generate():
        big = made()
        yield 1
        yield big

    running = generate()
    next(running)
    return running


def cached():
    remembered = functools.lru_cache(lambda: made())
    remembered()
    return remembered


class Listed(list):
    """A class of a person's that says what it likes of itself."""

    def __iter__(self):
        raise AssertionError


class Keyed(dict):
    """Another."""

    def items(self):
        raise AssertionError


def in_a_function_of_its_own():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.inner = made()
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    leaf = torch.ones(3, device="cuda", requires_grad=True)
    return Double.apply(leaf).sum() * 2


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (made, "thing"),
        (lambda: Listed([made()]), "thing[0]"),
        (lambda: Keyed(a=made()), "thing['a']"),
        (lambda: {"k" * 9999: made()}, "a value in thing"),
        (lambda: [*range(30_000), made()], "thing[30000]"),
        (in_a_function_of_its_own, "the graph of thing.inner"),
        (lambda: torch.nested.as_nested_tensor([made()], layout=torch.jagged), "thing._values"),
        (lambda: made().to_sparse().to("cuda"), "thing._v"),
        (lambda: [1, [made()]], "thing[1][0]"),
        (lambda: {"a": made()}, "thing['a']"),
        (lambda: {(1, 2): made()}, "a value in thing"),
        (lambda: {made()}, "an element of thing"),
        (lambda: torch.return_types.max((made(), None)), "thing[0]"),
        (in_attribute, "thing.inner.x"),
        (in_slot, "thing.slot"),
        (in_closure, "big in the closure of thing"),
        (in_default, "a default of thing[0]"),
        (suspended, "a local variable of thing"),
        (cached, "inside thing"),
        (lambda: iter([made()]), "inside thing[0]"),
        (lambda: functools.partial(max, made()), "an argument in thing[1][0]"),
        (lambda: made().untyped_storage(), "thing._b"),
    ],
)
def test_a_tensor_is_named_by_the_variable_that_holds_it(notebook, make, name):
    notebook(thing=make())
    assert holders() == {tensors.VARIABLE: [name]}


def test_views_are_named_behind_the_tensor_that_they_show(notebook):
    def make(base):
        notebook(part=base[:10], base=base, reshaped=base.view(-1, 5))

    make(made())
    assert holders() == {tensors.VARIABLE: ["base", "reshaped", "part (a view)"]}


def test_a_view_alone_is_listed_with_all_that_it_keeps(notebook):
    notebook(part=made()[:10])
    (each,) = of_made()
    assert (each.names, each.shown, each.shape) == (
        {tensors.VARIABLE: ["part (a view)"]},
        40,
        (10,),
    )


def test_models_their_gradients_and_optimizers(notebook):
    def train():
        model = nn.Sequential(nn.Linear(NUMBERS, 1, bias=False)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, NUMBERS, device="cuda")).sum().backward()
        optimizer.step()
        notebook(a_step=optimizer, net=model)

    train()
    listed = {each.names[tensors.VARIABLE][0]: each.is_model for each in of_made()}
    assert listed == {
        "net[0].weight": True,
        "net[0].weight.grad": False,
        "exp_avg of net[0].weight, in a_step": True,
        "exp_avg_sq of net[0].weight, in a_step": True,
    }


def test_what_a_backward_needs_is_said_to_be_the_graphs(notebook):
    leaf = torch.ones(1, device="cuda", requires_grad=True)
    loss = (made() * leaf).sum()
    loss.item()
    notebook(loss=loss)
    (each,) = of_made()
    assert (each.names, each.shape) == (
        {tensors.GRAPH: ["PyTorch, for the backward of loss"]},
        (12345,),
    )


def test_what_is_named_is_what_has_to_go_for_a_graphs_memory_to_be_free(notebook):
    leaf = torch.ones(1, device="cuda", requires_grad=True)
    losses = [(made() * leaf).sum() for _ in range(5)]
    losses[-1].item()

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            ctx.save_for_backward(values)
            return values + values

        @staticmethod
        def backward(ctx, gradient):
            return gradient + gradient

    # These two are of graphs that keep nothing.
    notebook(part=leaf[:1], moved=leaf.view(1) + 1, losses=losses)
    expected = "PyTorch, for the backward of losses[0], losses[1], losses[2], …"
    assert [each.names for each in of_made()] == [{tensors.GRAPH: [expected]}] * 5
    del losses[1:]
    notebook(run={"loss": losses.pop()})
    expected = "PyTorch, for the backward of run['loss']"
    assert holders() == {tensors.GRAPH: [expected]}
    notebook(run=Doubled.apply(made() + leaf))
    assert [each.names for each in of_made()] == [
        {tensors.GRAPH: ["PyTorch, for the backward of run"]},
        {tensors.VARIABLE: ["run"]},
    ]


def test_no_hook_of_the_notebooks_is_called(notebook):
    calls = []
    leaf = torch.ones(1, device="cuda", requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: calls.append(x) or x):
        loss = (made() * leaf).sum()

    class Curious:
        def __getattribute__(self, name):
            calls.append(name)
            return object.__getattribute__(self, name)

    notebook(loss=loss, curious=Curious())
    assert of_made()
    assert calls == []


def test_what_cannot_be_looked_at_is_passed_over(notebook):
    asked = []

    class Meta(type):
        def __getattribute__(cls, name):
            asked.append(name)
            return super().__getattribute__(name)

    class Odd(metaclass=Meta):
        __slots__ = ("a", "b")

    class Dictless:
        __dict__ = property(lambda self: 1 / 0)

    class Nowhere:
        __module__ = 7

    class Wild:
        def __getattr__(self, name):
            asked.append(name)
            raise ZeroDivisionError

        __bool__ = __eq__ = __hash__ = __len__ = __iter__ = lambda *_: 1 / 0

    class Fields(tuple):
        __slots__ = ()
        _fields = property(lambda self: 1 / 0)

    nameless = types.ModuleType("x")
    del nameless.__name__
    deep = [made()]
    for _ in range(20_000):
        deep = [deep]
    notebook(
        odd=Odd(), dictless=Dictless(), nowhere=Nowhere(), wild=Wild(), nameless=nameless,
        proxy=weakref.proxy(nameless), fields=Fields((1, 2)), classes=[Odd, Wild], deep=deep,
    )  # fmt: skip
    asked.clear()
    (name,) = holders()[tensors.VARIABLE]
    assert name.startswith("…")
    assert name.endswith("[0][0]")
    assert asked == []


def test_a_function_that_runs_in_a_thread(notebook):
    begun, end = threading.Event(), threading.Event()

    def work():
        big = made()
        begun.set()
        end.wait(50)
        del big

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(50)
        assert holders() == {tensors.RUNNING: ["big of work()"]}
    finally:
        end.set()
        thread.join(50)
    assert of_made() == []  # looking at a frame keeps nothing of it


def test_an_error_that_python_keeps(notebook, monkeypatch):
    def fail():
        big = made()
        raise ValueError(big.shape)

    try:
        fail()
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert holders() == {tensors.ERROR: ["big of fail() in a failed cell's error"]}
    assert tensors.of_errors()
    notebook(x=sys.last_value)
    assert list(holders()) == [tensors.VARIABLE, tensors.ERROR]


def test_what_something_else_in_python_holds_is_not_passed_over(notebook, monkeypatch):
    monkeypatch.setattr(json, "hidden", made(), raising=False)
    assert holders() == {tensors.HIDDEN: ["no variable, but something in Python (a dict)"]}


def test_looking_computes_nothing_and_keeps_nothing(notebook):
    notebook(x=made(), model=nn.Linear(3, 3).cuda())
    current.session.synchronize()
    before = current.session.outbox.position, current.session.round_trips
    memory.whole_table()
    assert (current.session.outbox.position, current.session.round_trips) == before
    gc.disable()
    try:
        gone = weakref.ref(vars(sys.modules["__main__"])["x"]._b)
        memory.table()
        notebook(x=None)
        assert gone() is None
    finally:
        gc.enable()


def test_the_sum_is_what_the_session_counts_whatever_was_done(notebook):
    """Random notebooks: storages are made, viewed, grown, kept in all places, and forgotten."""
    chance = random.Random(7)
    gc.collect()
    kept = {}
    steps = (
        lambda name: kept.update({name: torch.ones(chance.randrange(1, 99), device="cuda")}),
        lambda name: kept.update({name: [each[:1] for each in kept.values() if _is_tensor(each)]}),
        lambda name: kept.update({name: nn.Linear(chance.randrange(1, 9), 3).cuda()}),
        lambda name: kept.pop(next(iter(kept)), None),
        lambda name: [each.resize_(7) for each in kept.values() if _may_grow(each)],
        lambda name: kept.update({name: torch.ones(5, device="cuda", requires_grad=True).exp()}),
        lambda name: kept.update({name: (kept.get(name), kept.copy())}),
    )
    notebook(kept=kept)
    for number in range(120):
        chance.choice(steps)(f"v{number % 9}")
        if number % 10 == 9:
            current.session.catch_up()
            found = held(current.session)
            assert sum(each.nbytes for each in found) == current.session.living_bytes(())
            assert all(each.names for each in found)


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _may_grow(value):
    return _is_tensor(value) and not value.requires_grad


def test_a_table_of_everything_says_as_many_bytes_as_there_are(notebook, capsys):
    notebook(x=made())
    command.run("memory all")
    said = capsys.readouterr().out.splitlines()
    assert "12345" in next(line for line in said if line.endswith("  x"))
    count = len(held(current.session))
    assert said[0].endswith(f" in {count} storage{'s' * (count > 1)}")
    assert len(said) == 3 + count  # and what the broker counts, and the columns' names


@pytest.mark.parametrize("word", ["memry", "memory  everything", "all", "r" * 5000, "--help", "\0"])
def test_a_wrong_word_is_answered_with_the_right_ones(word, capsys):
    command.run(word)
    said = capsys.readouterr().out
    assert said.startswith("%jgpu does not know ")
    assert "There are: %jgpu, %jgpu memory, %jgpu memory all and %jgpu release" in said
    assert len(said) < 200
