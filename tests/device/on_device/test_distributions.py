"""Checks of distributions: few waits, and torch's own errors on their own lines."""

import pytest
import torch
from torch.distributions import (
    Bernoulli,
    Categorical,
    Dirichlet,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
    Uniform,
)
from torch.utils._python_dispatch import TorchDispatchMode

from jgpu.device import current


def waits(step):
    """How often a step waits once it has been taken before."""
    for _ in range(3):
        step()
    before = current.session.round_trips
    step()
    return current.session.round_trips - before


@pytest.fixture(autouse=True)
def checks():
    """As torch begins: whatever was compiled before has turned the checks off."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


@pytest.fixture
def zeros():
    return torch.zeros(8, device="cuda")


@pytest.fixture
def ones():
    return torch.ones(8, device="cuda")


def test_all_parameters_of_a_distribution_are_looked_at_in_one_wait(zeros, ones):
    assert waits(lambda: Normal(zeros, ones)) == 1
    assert waits(lambda: Uniform(zeros, ones)) == 1
    assert waits(lambda: Normal(zeros, ones, validate_args=False)) == 0


class Compared(TorchDispatchMode):
    """How often values were compared."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.eq.Tensor
        return func(*args, **(kwargs or {}))


def test_a_parameter_that_is_alone_is_looked_at_once(zeros):
    with Compared() as seen:
        Categorical(logits=zeros)
    assert seen.count == 1


def test_an_action_that_is_scored_and_read_is_waited_for_once(zeros):
    choice = Categorical(logits=zeros)

    def read_then_score():
        action = choice.sample()
        return action.item(), choice.log_prob(action)

    def score_then_read():
        action = choice.sample()
        return choice.log_prob(action), action.item()

    assert waits(read_then_score) == waits(score_then_read) == 1


def test_labels_that_stay_are_looked_at_once_and_anew_when_they_were_written(ones):
    coin, labels = Bernoulli(probs=ones / 2), torch.tensor([0.0, 1.0] * 4, device="cuda")
    assert waits(lambda: coin.log_prob(labels)) == 0
    labels[3].mul_(2)
    with pytest.raises(ValueError, match=r"within the support \(Boolean"):
        coin.log_prob(labels)
    labels.clamp_(max=1)
    assert coin.log_prob(labels).shape == (8,)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda where: Normal(
            torch.zeros(3, device=where), torch.tensor([1, -1, 1.0], device=where)
        ),
        lambda where: Normal(
            torch.full((3,), torch.nan, device=where), -torch.ones(3, device=where)
        ),
        lambda where: Normal(torch.zeros(3, device=where), torch.ones(2, device=where)),
        lambda where: Categorical(probs=torch.zeros(3, device=where)),
        lambda where: Dirichlet(torch.tensor([1.0, 0.0], device=where)),
        lambda where: MultivariateNormal(torch.zeros(2, device=where), -torch.eye(2, device=where)),
        lambda where: Categorical(logits=torch.zeros(3, device=where)).log_prob(
            torch.tensor([3], device=where)
        ),
        lambda where: Bernoulli(torch.full((2,), 0.5, device=where)).log_prob(
            torch.tensor([0.5, 1], device=where)
        ),
        lambda where: Uniform(torch.zeros(2, device=where), torch.ones(2, device=where)).log_prob(
            torch.tensor([0.5, 2], device=where)
        ),
        lambda where: Independent(
            Normal(torch.zeros(2, device=where), torch.ones(2, device=where)), 1
        ).log_prob(torch.zeros(3, device=where)),
    ],
)
def test_what_is_wrong_is_raised_on_its_line_in_torchs_words(wrong):
    said = []
    for where in ("cpu", "cuda"):
        with pytest.raises((ValueError, RuntimeError)) as raised:
            wrong(where)
        said.append((raised.type, str(raised.value).replace(", device='cuda:0'", "")))
    assert said[0] == said[1]


def test_whether_later_values_are_looked_at_is_as_it_was_said(zeros, ones):
    assert "_validate_args" not in vars(Normal(zeros, ones))
    assert Normal(zeros, ones, validate_args=True)._validate_args is True
    assert Normal(zeros, ones).batch_shape == (8,)
    with pytest.raises(ValueError, match="support"):
        Normal(zeros, ones).log_prob(zeros / 0)


def test_a_failure_of_earlier_work_is_not_lost_in_a_check(zeros, ones):
    table = torch.nn.Embedding(4, 1).cuda()
    table(torch.tensor([9]).cuda())
    with pytest.raises(IndexError):
        Normal(zeros, ones)
    Normal(zeros, ones)


def test_a_class_that_says_nothing_of_its_parameters_is_warned_of_at_its_line():
    class Silent(Distribution):
        pass

    with pytest.warns(UserWarning, match="does not define `arg_constraints`") as told:
        Silent()
    assert [each.filename for each in told] == [__file__]


def test_distributions_on_the_host_are_torchs_own():
    before = current.session.round_trips
    with pytest.raises(ValueError, match="parameter scale"):
        Normal(torch.zeros(2), -torch.ones(2))
    assert current.session.round_trips == before
