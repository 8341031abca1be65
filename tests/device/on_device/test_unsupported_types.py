"""Types that an op does not take: errors of native classes, on the line that causes them."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from jgpu.device import current

_CALLS = {
    "complex": lambda x: torch.complex(x, x),
    "eig": torch.linalg.eig,
    "eigvals": torch.linalg.eigvals,
    "eigvals into out": lambda x: torch.linalg.eigvals(
        x, out=torch.empty(4, dtype=torch.complex64, device=x.device)
    ),
    "polar": lambda x: torch.polar(x, x),
}


#: Ops whose kernels do not take all types, while their meta kernels do: dimensions, and the call.
_OF_FLOATING_POINT = {
    "adaptive_avg_pool2d": (4, lambda x: F.adaptive_avg_pool2d(x, 2)),
    "adaptive_max_pool3d": (5, lambda x: F.adaptive_max_pool3d(x, 2)),
    "avg_pool1d": (3, lambda x: F.avg_pool1d(x, 2)),
    "avg_pool3d": (5, lambda x: F.avg_pool3d(x, 2)),
    "cholesky_solve": (3, lambda x: torch.cholesky_solve(x, x)),
    "conv2d": (4, lambda x: F.conv2d(x, x[:, :, :3, :3])),
    "conv_transpose2d": (4, lambda x: F.conv_transpose2d(x, x[:, :, :3, :3])),
    "fractional_max_pool2d": (4, lambda x: _fractional(F.fractional_max_pool2d, x)),
    "fractional_max_pool3d": (5, lambda x: _fractional(F.fractional_max_pool3d, x)),
    "glu": (3, F.glu),
    "householder_product": (3, lambda x: torch.linalg.householder_product(x, x[:, 0])),
    "huber_loss": (3, lambda x: F.huber_loss(x, x)),
    "interpolate": (3, lambda x: F.interpolate(x, scale_factor=2, mode="linear")),
    "local_response_norm": (4, lambda x: F.local_response_norm(x, 2)),
    "lu_factor": (3, torch.linalg.lu_factor),
    "max_pool3d": (5, lambda x: F.max_pool3d(x, 2)),
    "multi_margin_loss": (3, lambda x: F.multi_margin_loss(x[0], _zeros(6, x))),
    "multilabel_margin_loss": (3, lambda x: F.multilabel_margin_loss(x[0], _zeros((6, 6), x))),
    "pad by reflection": (3, lambda x: F.pad(x, (1, 1), mode="reflect")),
    "pdist": (3, lambda x: F.pdist(x[0])),
    "prelu": (3, lambda x: F.prelu(x, x[0, 0, :1])),
    "smoothed interpolate": (4, lambda x: F.interpolate(
        x, scale_factor=0.5, mode="bilinear", antialias=True
    )),
    "triangular_solve": (3, lambda x: torch.triangular_solve(x, x)[0]),
}  # fmt: skip


def _zeros(shape, x):
    return torch.zeros(shape, dtype=torch.int64, device=x.device)


def _fractional(pool, x):
    samples = torch.ones(6, 6, x.dim() - 2).to(x)
    return pool(x, 2, output_size=2, _random_samples=samples)


def _outcome(call, x):
    """The error's class and text, or the geometry; late errors are raised here, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = call(x)
        except RuntimeError as error:
            is_missing = isinstance(error, NotImplementedError)
            return is_missing, str(error).partition("\n")[0].replace("torch.cuda.", "torch.")
    torch.cuda.synchronize()
    made = made[0] if isinstance(made, tuple) else made
    return made.dtype, made.shape


_TYPES = [torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", _TYPES, ids=str)
def test_a_type_that_a_kernel_lacks_is_refused_on_the_line_as_natively(dtype):
    differing = {}
    for name, (dims, call) in _OF_FLOATING_POINT.items():
        for last in (6, 300):
            x = torch.ones(*(6,) * (dims - 1), last).to(dtype)
            expected, made = _outcome(call, x), _outcome(call, x.to("cuda"))
            if made != expected:
                differing[name, last] = expected, made
    assert differing == {}


_INTO = {
    "all": lambda x, out: torch.all(x, 0, out=out),
    "any": lambda x, out: torch.any(x, 0, out=out),
    "argmax": lambda x, out: torch.argmax(x, 0, out=out),
    "nonzero": lambda x, out: torch.nonzero(x, out=out),
    "sort": lambda x, out: torch.sort(x, out=(out.to(x.dtype), out)),
    "take": lambda x, out: torch.take(x, x.long(), out=out),
}


@pytest.mark.parametrize("name", _INTO)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", [torch.float64, torch.int32], ids=str)
def test_an_out_of_a_wrong_type_is_refused_as_natively(name, dtype, target):
    def into(x):
        return _INTO[name](x, torch.empty(3, dtype=target, device=x.device))

    x = torch.ones(3, 3, dtype=dtype)
    assert _outcome(into, x.to("cuda")) == _outcome(into, x)


def test_types_that_a_kernel_takes_are_not_waited_for():
    for size in (6, 40):
        x = torch.ones(2, 4, size, size, dtype=torch.bfloat16, device="cuda")
        before = current.session.round_trips
        made = F.max_pool2d(F.interpolate(x, scale_factor=2, mode="bilinear"), 2)
        assert current.session.round_trips == before
        assert made.shape == (2, 4, size, size)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("name", _CALLS)
def test_a_type_that_a_table_of_a_meta_kernel_lacks_is_refused_in_native_words(name, dtype):
    found = []
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError) as caught:
            _CALLS[name](torch.ones(4, 4).to(dtype).to(device))
        found.append((caught.type, str(caught.value)))
    assert found[0] == found[1]


def test_a_large_tensor_of_a_wrong_type_is_refused_by_a_runtime_error():
    with pytest.raises(RuntimeError, match=r"does not take tensors of these types: torch\.int64"):
        torch.linalg.eigvals(torch.ones(2100, 2100, dtype=torch.int64, device="cuda"))
