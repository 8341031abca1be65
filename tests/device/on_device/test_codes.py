"""Ops that read an error code from the device raise on their line what native PyTorch raises."""

import threading
from itertools import islice

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from jgpu.device import current

L = torch.linalg


def nan(device):
    return torch.full((3, 3), float("nan"), device=device)


def zeros(device):
    return torch.zeros(3, 3, device=device)


def negative(device):
    return -torch.eye(3, device=device)


def column(device):
    return torch.ones(3, 1, device=device)


CASES = {
    "svd": lambda d: L.svd(nan(d)),
    "svd of a batch": lambda d: L.svd(torch.stack([torch.eye(3, device=d), nan(d)])),
    "svd with out": lambda d: L.svd(nan(d), out=[torch.empty(3, 3, device=d) for _ in "usv"]),
    "svdvals": lambda d: L.svdvals(nan(d)),
    "torch.svd": lambda d: torch.svd(nan(d)),
    "histc": lambda d: torch.histc(nan(d)),
    "histc of a range of nothing": lambda d: torch.histc(nan(d), 4, 1, 1),
    "normal": lambda d: torch.normal(0.0, negative(d)),
    "normal of two tensors": lambda d: torch.normal(zeros(d), negative(d)),
    "normal with out": lambda d: torch.normal(zeros(d), negative(d), out=zeros(d)),
    "eigh": lambda d: L.eigh(nan(d)),
    "eigvalsh": lambda d: L.eigvalsh(nan(d)),
    "eig": lambda d: L.eig(nan(d)),
    "pinv": lambda d: L.pinv(nan(d)),
    "hermitian pinv": lambda d: L.pinv(nan(d), hermitian=True),
    "matrix_rank": lambda d: L.matrix_rank(nan(d)),
    "cond": lambda d: L.cond(nan(d)),
    "nuclear norm": lambda d: L.matrix_norm(nan(d), "nuc"),
    "spectral norm": lambda d: L.matrix_norm(nan(d), 2),
    "least singular value": lambda d: L.norm(nan(d), -2),
    "torch.norm": lambda d: torch.norm(nan(d), "nuc"),
    "cholesky": lambda d: L.cholesky(negative(d)),
    "torch.cholesky": lambda d: torch.cholesky(negative(d)),
    "cholesky_ex": lambda d: L.cholesky_ex(negative(d), check_errors=True),
    "cholesky_inverse": lambda d: torch.cholesky_inverse(zeros(d)),
    "inv": lambda d: L.inv(zeros(d)),
    "inv_ex": lambda d: L.inv_ex(zeros(d), check_errors=True),
    "ldl_factor": lambda d: L.ldl_factor(zeros(d)),
    "ldl_factor_ex": lambda d: L.ldl_factor_ex(zeros(d), check_errors=True),
    "lu_factor": lambda d: L.lu_factor(zeros(d)),
    "lu_factor_ex": lambda d: L.lu_factor_ex(zeros(d), check_errors=True),
    "solve": lambda d: L.solve(zeros(d), column(d)),
    "solve_ex": lambda d: L.solve_ex(zeros(d), column(d), check_errors=True),
    "tensorinv": lambda d: L.tensorinv(zeros(d), ind=1),
    "tensorsolve": lambda d: L.tensorsolve(zeros(d), column(d)[:, 0]),
    "matrix_power": lambda d: L.matrix_power(zeros(d), -2),
    "lstsq": lambda d: L.lstsq(nan(d), column(d)),
    "svd_lowrank": lambda d: torch.svd_lowrank(nan(d), 2),
    "lobpcg": lambda d: torch.lobpcg(nan(d), 1),
    "vmap": lambda d: torch.vmap(L.svd)(nan(d).expand(2, 3, 3)),
    "jvp": lambda d: torch.func.jvp(L.eigvalsh, (nan(d),), (column(d).expand(3, 3),)),
    "jacrev": lambda d: torch.func.jacrev(L.svdvals)(nan(d)),
}


def raised(call):
    with pytest.raises(RuntimeError) as caught:
        call()
    return type(caught.value), str(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CASES.values(), ids=CASES.keys())
def test_the_error_is_raised_by_the_call_as_in_native_pytorch(call):
    before = torch.ones(3, device="cuda") * 2
    assert raised(lambda: call("cuda")) == raised(lambda: call("cpu"))
    assert (before + 1).tolist() == [3, 3, 3]  # and nothing is raised later


def test_a_range_that_a_known_plan_has_not_seen_is_checked_too():
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    for _ in range(2):
        assert torch.histc(x, bins=2, min=0, max=4).tolist() == [1, 2]
        with pytest.raises(RuntimeError, match="max must be larger than min"):
            torch.histc(x, bins=2, min=4, max=0)
        with pytest.raises(RuntimeError, match="is not finite"):
            torch.histc(x / 0, bins=2, min=1, max=1)


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return L.svdvals(grad * float("nan")) * grad


def test_an_error_of_backward_is_raised_by_backward():
    def call(device):
        x = torch.ones(3, 3, device=device, requires_grad=True)
        Wrong.apply(x).sum().backward()

    assert raised(lambda: call("cuda")) == raised(lambda: call("cpu"))


def test_a_factorization_is_tried_again_with_more_on_its_diagonal():
    def factor(device):
        kernel = torch.ones(4, 4, device=device)
        kernel -= 0.1 * torch.eye(4, device=device)
        tries = 0
        while True:
            try:
                return L.cholesky_ex(kernel, check_errors=True).L.cpu(), tries
            except L.LinAlgError:
                kernel += 0.03 * torch.eye(4, device=device)
                tries += 1

    found, native = factor("cuda"), factor("cpu")
    assert native[1] > 1
    assert found[1] == native[1]
    assert torch.equal(found[0], native[0])


def test_values_recorded_before_a_failed_factorization_stay_and_its_result_is_lost():
    x = torch.arange(9.0, device="cuda").view(3, 3)
    y = x * 2
    x += 1
    with pytest.raises(L.LinAlgError):
        L.svd(x * float("nan"))
    assert y.sum().item() == 72
    assert x.sum().item() == 45
    assert torch.equal(L.svdvals(x).cpu(), L.svdvals(x.cpu()))


def test_an_earlier_failure_is_raised_first_and_names_its_own_op():
    rows = torch.ones(2, 3, 3, device="cuda")
    bad = rows[torch.tensor([7], device="cuda")]
    with pytest.raises(IndexError):
        L.svd(bad)
    assert torch.equal(L.svdvals(rows).cpu(), L.svdvals(rows.cpu()))


def test_an_error_is_raised_in_the_thread_that_calls():
    found = []

    def call():
        try:
            L.eigh(nan("cuda"))
        except L.LinAlgError as error:
            found.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    assert found == [raised(lambda: L.eigh(nan("cpu")))[1]]


def test_an_op_waits_only_where_its_error_is_wanted():
    x = torch.eye(3, device="cuda")
    L.cholesky_ex(x), L.svd(x)
    torch.cuda.synchronize()
    before = current.session.round_trips
    L.cholesky_ex(x), L.inv_ex(x), L.lu_factor_ex(x), L.qr(x), L.det(x)
    assert current.session.round_trips == before
    for call in (lambda: L.svd(x), lambda: L.eigh(x), lambda: L.inv_ex(x, check_errors=True)):
        call()
        before = current.session.round_trips
        call()
        assert current.session.round_trips == before + 1


#: whose MKL routine ends the process in native PyTorch
ENDS_THE_PROCESS = {"linalg.eigvals"}


def factorizations():
    """Ops of PyTorch's op database that may call LAPACK."""
    words = ("cholesky", "geqrf", "logdet", "lu", "norm", "ormqr", "pca", "pinverse", "qr", "svd")
    return [
        op
        for op in op_db
        if op.name.startswith(("linalg.", *words)) and not op.name.startswith("normal")
    ]


def filled(value, number, device):
    """A sample's argument on `device`, with `number` in place of all floating-point values."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            value = torch.full_like(value, number)
        return value.detach().to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(filled(item, number, device) for item in value)
    return value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [float("nan"), 0.0])
def test_each_factorization_of_such_numbers_raises_on_its_line_what_native_pytorch_raises(number):
    different, errors = [], 0
    for op in factorizations():
        if op.name in ENDS_THE_PROCESS and number:
            continue
        for sample in islice(op.sample_inputs("cpu", torch.float32), 2):
            found = []
            for device in ("cpu", "cuda"):
                args = filled((sample.input, *sample.args), number, device)
                named = {name: filled(v, number, device) for name, v in sample.kwargs.items()}
                try:
                    op(*args, **named)
                    torch.cuda.synchronize()
                    found.append(None)
                except (RuntimeError, IndexError) as error:
                    found.append((type(error), str(error)))
            errors += found[0] is not None
            if found[0] != found[1]:
                different.append((op.name, op.variant_test_name, *found))
    assert different == []
    assert errors > 9
