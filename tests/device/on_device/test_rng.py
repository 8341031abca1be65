"""Random numbers on the device: those of a host generator of its own that is seeded alike."""

import copy
import gc
import pickle
from contextlib import suppress

import pytest
import torch
from torch.nn import functional

from jgpu.device import current
from jgpu.device.recording.ops import info_of
from jgpu.wire import limits

SEED = 1234


@pytest.fixture
def pair():
    """The device's generator and the host's, seeded alike."""
    return torch.Generator(device="cuda").manual_seed(SEED), torch.Generator().manual_seed(SEED)


WEIGHTS = torch.rand(50, generator=torch.Generator().manual_seed(0))

DRAWS = {
    "randn": lambda g, d: torch.randn(50, generator=g, device=d),
    "rand": lambda g, d: torch.rand(3, 7, generator=g, device=d, dtype=torch.float64),
    "randint": lambda g, d: torch.randint(0, 9, (50,), generator=g, device=d),
    "randperm": lambda g, d: torch.randperm(50, generator=g, device=d),
    "normal_": lambda g, d: torch.empty(50, device=d).normal_(2.0, 3.0, generator=g),
    "uniform_": lambda g, d: torch.empty(50, device=d).uniform_(-1, 1, generator=g),
    "exponential_": lambda g, d: torch.empty(50, device=d).exponential_(generator=g),
    "random_": lambda g, d: torch.empty(50, device=d, dtype=torch.int64).random_(generator=g),
    "bernoulli": lambda g, d: torch.bernoulli(WEIGHTS.to(d), generator=g),
    "bernoulli_": lambda g, d: torch.empty(50, device=d).bernoulli_(0.3, generator=g),
    "multinomial": lambda g, d: torch.multinomial(WEIGHTS.to(d), 20, generator=g),
    "normal": lambda g, d: torch.normal(WEIGHTS.to(d), 1.0, generator=g),
    "poisson": lambda g, d: torch.poisson(WEIGHTS.to(d), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_draws_what_the_host_draws(pair, name):
    device, host = pair
    for _ in range(2):
        assert torch.equal(DRAWS[name](device, "cuda").cpu(), DRAWS[name](host, "cpu"))
    assert torch.equal(device.get_state(), host.get_state())


WITHOUT_GENERATOR = {
    "randn": lambda d: torch.randn(50, device=d),
    "rand_like": lambda d: torch.rand_like(WEIGHTS.to(d)),
    "randn_like": lambda d: torch.randn_like(WEIGHTS.to(d)),
    "dropout": lambda d: functional.dropout(WEIGHTS.to(d), 0.4),
    "dropout2d": lambda d: functional.dropout2d(WEIGHTS.view(1, 10, 5, 1).to(d), 0.4),
    "alpha_dropout": lambda d: functional.alpha_dropout(WEIGHTS.to(d), 0.4, training=True),
    "rrelu": lambda d: functional.rrelu(WEIGHTS.to(d) - 0.5, training=True),
    "gumbel_softmax": lambda d: functional.gumbel_softmax(WEIGHTS.to(d)),
    "linear": lambda d: torch.nn.Linear(5, 5, device=d).weight.detach(),
}


@pytest.mark.parametrize("name", WITHOUT_GENERATOR)
def test_the_default_generator_is_seeded_with_the_hosts(name):
    torch.manual_seed(SEED)
    drawn = WITHOUT_GENERATOR[name]("cuda").cpu()
    torch.manual_seed(SEED)
    assert torch.equal(drawn, WITHOUT_GENERATOR[name]("cpu"))


def test_the_host_draws_the_same_whatever_the_device_draws():
    torch.manual_seed(SEED)
    alone = torch.rand(5)
    torch.manual_seed(SEED)
    torch.rand(100, device="cuda")
    assert torch.equal(torch.rand(5), alone)


def test_each_seed_takes_its_place_among_the_draws():
    torch.manual_seed(1)
    first = torch.randn(3, device="cuda")
    torch.cuda.manual_seed(2)
    second = torch.randn(3, device="cuda")
    torch.cuda.manual_seed_all(1)
    assert torch.equal(first, torch.randn(3, device="cuda"))
    assert not torch.equal(first, second)


def test_a_generator_says_what_it_is():
    made = torch.Generator("cuda")
    assert made.device == torch.device("cuda:0")
    assert isinstance(made, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator().device.type == "cpu"
    assert made.initial_seed() == torch.Generator().initial_seed()
    assert made.manual_seed(-1).initial_seed() == 2**64 - 1
    assert made.seed() == made.initial_seed()


def test_seeds_past_64_bits_are_refused_as_the_host_does():
    with pytest.raises(ValueError, match="Overflow when unpacking"):
        torch.Generator("cuda").manual_seed(1 << 64)


def test_a_state_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"must be a torch\.ByteTensor"):
        torch.Generator("cuda").set_state(torch.zeros(3))


def test_copies_of_a_generator_go_on_where_it_stands(pair):
    device, _ = pair
    torch.rand(7, device="cuda", generator=device)
    copies = [copy.deepcopy(device), pickle.loads(pickle.dumps(device)), device.clone_state()]
    expected = torch.rand(3, device="cuda", generator=device)
    for made in copies:
        assert made.initial_seed() == SEED
        assert torch.equal(torch.rand(3, device="cuda", generator=made), expected)


def test_states_can_be_kept_and_put_back():
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    first = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), first)
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())


def test_a_state_is_asked_for_once_until_something_is_drawn():
    torch.rand(2, device="cuda")
    first = torch.cuda.get_rng_state()
    before = current.session.round_trips
    (torch.ones(3, device="cuda") * 2).sum()
    again = torch.cuda.get_rng_state()
    again.zero_()
    assert torch.equal(torch.cuda.get_rng_state(), first)
    assert current.session.round_trips == before
    torch.rand(2, device="cuda")
    assert not torch.equal(torch.cuda.get_rng_state(), first)
    torch.cuda.set_rng_state(first)
    assert torch.equal(torch.cuda.get_rng_state(), first)
    torch.cuda.manual_seed(5)
    assert not torch.equal(torch.cuda.get_rng_state(), first)


def test_forked_random_states_come_back_on_both_sides():
    with torch.random.fork_rng():
        inside = torch.rand(3, device="cuda"), torch.rand(3)
    assert torch.equal(torch.rand(3, device="cuda"), inside[0])
    assert torch.equal(torch.rand(3), inside[1])


def test_the_default_generator_can_be_named():
    (default,) = torch.cuda.default_generators
    torch.cuda.manual_seed(SEED)
    assert default.initial_seed() == torch.cuda.initial_seed() == SEED
    drawn = torch.rand(3, device="cuda", generator=default)
    torch.cuda.manual_seed(SEED)
    assert torch.equal(drawn, torch.rand(3, device="cuda"))


def test_generators_of_the_other_side_are_refused():
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(3, generator=torch.Generator(), device="cuda")
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.randn(3, generator=torch.Generator("cuda"))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.empty(3).normal_(generator=torch.Generator("cuda"))


def test_a_loop_that_makes_generators_keeps_to_one_number():
    def draw(seed):
        made = torch.Generator("cuda").manual_seed(seed)
        return torch.rand(2, device="cuda", generator=made)

    first = [draw(seed) for seed in range(3)]
    taken = current.session.generators._next
    for _ in range(2000):
        torch.Generator("cuda")
    assert current.session.generators._next <= taken + 1
    for seed, drawn in enumerate(first):
        assert torch.equal(draw(seed), drawn)


def test_a_new_generator_is_not_in_the_state_that_a_forgotten_one_left():
    torch.rand(5, device="cuda", generator=torch.Generator("cuda").manual_seed(7))
    drawn = torch.rand(5, device="cuda", generator=torch.Generator("cuda"))
    assert torch.equal(drawn.cpu(), torch.rand(5, generator=torch.Generator()))


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: torch.zeros(n, dtype=torch.int64, device="cuda").random_(0, 5),
        lambda n: torch.zeros(n, dtype=torch.int64, device="cuda").bernoulli_(0.5),
        lambda n: torch.rand_like(torch.zeros(n, dtype=torch.float16, device="cuda")),
        lambda n: torch.rand_like(torch.zeros(n, dtype=torch.int64, device="cuda")),
        lambda n: torch.zeros(n, dtype=torch.int64, device="cuda").uniform_(),
        lambda n: torch.nn.functional.dropout(torch.zeros(0, n, device="cuda")),
    ],
    ids=["whole", "truths", "like", "like whole", "uniform whole", "nothing"],
)
def test_a_new_call_that_is_tried_on_the_host_draws_none_of_its_numbers(draw):
    state = torch.default_generator.get_state()
    kept = torch.Generator()
    kept.set_state(state)
    for n in (3, 5):
        expected = torch.rand(4, generator=kept)
        with suppress(NotImplementedError):  # of whole numbers, as natively
            draw(n)
        assert torch.equal(torch.rand(4), expected)


def test_what_another_thread_draws_while_a_new_call_is_tried_is_not_taken_back(monkeypatch):
    info, drawn = info_of(torch.ops.aten.random_.default), []

    def tried(*args, func=info.func, **kwargs):
        drawn.append(torch.rand(1))  # as that thread would
        return func(*args, **kwargs)

    vars(tried).update({name: getattr(info.func, name) for name in ("_schema", "tags")})
    monkeypatch.setattr(info, "func", tried)
    kept = torch.Generator()
    kept.set_state(torch.default_generator.get_state())
    torch.zeros(7, 13, dtype=torch.int64, device="cuda").random_()
    assert drawn
    expected = torch.cat([torch.rand(1, generator=kept) for _ in drawn])
    assert torch.equal(torch.cat(drawn), expected)
    assert torch.equal(torch.rand(4), torch.rand(4, generator=kept))


def test_the_line_that_makes_one_generator_too_many_raises_and_all_others_stay(monkeypatch):
    gc.collect()
    generators = current.session.generators
    monkeypatch.setattr(limits, "MAX_GENERATORS", generators._next + 5)
    spare, kept = len(generators.forgotten), []

    def fill_up():
        while True:
            kept.append(torch.Generator(device="cuda").manual_seed(len(kept)))

    with pytest.raises(torch.OutOfMemoryError, match=r"generators on the shared device.*the most"):
        fill_up()
    assert len(kept) == spare + 5
    drawn = [torch.rand(2, device="cuda", generator=each) for each in kept[:2]]
    del kept[0]
    again = torch.Generator(device="cuda").manual_seed(0)
    assert torch.rand(2, device="cuda", generator=again).tolist() == drawn[0].tolist()
    assert drawn[1].tolist() != drawn[0].tolist()


def test_more_than_a_thousand_generators_draw_each_for_itself():
    kept = [torch.Generator(device="cuda").manual_seed(k) for k in range(1100)]
    torch.manual_seed(1099)
    expected = torch.rand(2, device="cuda").tolist()
    assert torch.rand(2, device="cuda", generator=kept[-1]).tolist() == expected
    assert kept[1050].get_state().tolist() != kept[1051].get_state().tolist()
