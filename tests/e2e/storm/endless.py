"""Calls that are known to go on for ever, to end their process, or to take what nobody has.

    python endless.py [TIMES]

A dictionary of calls on the shared device, by the op's base name and a few words; as a program it
makes each of them so many times and prints a line of JSON for each: what came of it, and the
longest it took. A test holds the dictionary to the executor's table of precautions.
"""

import json
import sys
import time

import torch

NAN = float("nan")
#: places of a tensor of one element that is seen often: 4 GiB of whole numbers
MANY = 1 << 29
LEAST = {torch.int64: -(1 << 63), torch.int32: -(1 << 31)}


def doubles(*values):
    """Numbers of double precision on the device."""
    return torch.tensor(values, dtype=torch.float64, device="cuda")


def whole(*values, dtype=torch.int64):
    """Whole numbers on the device."""
    return torch.tensor(values, dtype=dtype, device="cuda")


def often(value, *shape):
    """One element, seen at every place of such a shape."""
    return torch.tensor(value, device="cuda").expand(shape or (MANY,))


def _polynomials():
    """Orders without end, where the kernel counts up to them; as a number, and as a tensor."""
    near = {"chebyshev": 1 + 2**-52, "shifted_chebyshev": 1 + 2**-52, "legendre": -0.3}
    for name in sorted(n for n in dir(torch.special) if "_polynomial_" in n):
        x = near.get(name.partition("_polynomial_")[0], 0.3)
        op = getattr(torch.special, name)
        yield f"special_{name} of order 1e12", lambda op=op, x=x: op(doubles(x, x), 1e12)
        yield f"special_{name} of orders", lambda op=op, x=x: op(x, doubles(3.0, 1e12, NAN, 1e12))
        yield f"special_{name} of NaN", lambda op=op: op(doubles(NAN), float("inf"))


def _grows_trusted():
    """An order that was small three hundred times."""
    x = doubles(0.3)
    for order in range(300):
        torch.special.laguerre_polynomial_l(x, order)
    return torch.special.laguerre_polynomial_l(x, 1e12)


def _quotients():
    """The one quotient of whole numbers that there is not."""
    for dtype, least in LEAST.items():
        for base in ("div", "divide", "floor_divide", "remainder", "fmod"):
            op, more = getattr(torch, base), {}
            if base.startswith("div"):
                more = {"rounding_mode": "trunc"}
            words = f"{base} {str(dtype).removeprefix('torch.')}"
            for divisor in ("a number", "a tensor"):

                def call(op=op, more=more, dtype=dtype, least=least, divisor=divisor):
                    minus = -1 if divisor == "a number" else whole(-1, -1, dtype=dtype)
                    return op(whole(least, 6, dtype=dtype), minus, **more)

                yield f"{words} by {divisor}", call

        def in_place(dtype=dtype, least=least):
            return whole(least, dtype=dtype).div_(-1, rounding_mode="floor")

        yield f"div {str(dtype).removeprefix('torch.')} in place", in_place


def _image(*shape):
    return torch.ones(shape, device="cuda")


aten = torch.ops.aten
CALLS = {
    "binomial of NaN": lambda: torch.binomial(doubles(NAN, 7.0), doubles(0.3, NAN)),
    **dict(_polynomials()),
    "special_laguerre_polynomial_l trusted": _grows_trusted,
    **dict(_quotients()),
    "special_zeta": lambda: torch.special.zeta(2, doubles(-1e12 - 0.5)),
    "special_zeta by a number": lambda: torch.special.zeta(doubles(2.0), -1e12 - 0.5),
    "polygamma": lambda: torch.polygamma(2, doubles(-1e12 - 0.5)),
    "special_polygamma": lambda: torch.special.polygamma(3, doubles(-1e12 - 0.5)),
    "round": lambda: torch.round(doubles(12.3456), decimals=1 << 62),
    "special_round": lambda: torch.special.round(doubles(12.3456), decimals=-(1 << 62)),
    "linalg_eigvals": lambda: torch.linalg.eigvals(doubles(NAN).expand(30, 30)),
    "_linalg_eigvals": lambda: aten._linalg_eigvals(doubles(float("inf")).expand(9, 9)),
    "matrix_power": lambda: torch.matrix_power(_image(3, 3), -(1 << 63)),
    "adaptive_max_pool2d": lambda: aten.adaptive_max_pool2d(_image(1, 4, 4), (1 << 31, 0)),
    "adaptive_avg_pool2d": lambda: aten._adaptive_avg_pool2d(_image(1, 4, 4), (1 << 40, 0)),
    "_upsample_bilinear2d_aa": lambda: aten._upsample_bilinear2d_aa(
        _image(1, 1, 4, 4), (1, 1), False, 1e-12, 1e-12
    ),
    "grid_sampler_2d_backward": lambda: aten.grid_sampler_2d_backward(
        doubles(1.0).expand(1, 1, 2, 2),
        doubles(1.0).expand(1, 1, 4, 4),
        doubles(NAN).expand(1, 2, 2, 2),
        0,
        1,
        False,
        [True, True],
    ),
    "combinations": lambda: torch.combinations(_image(5), 30),
    "bincount": lambda: torch.bincount(whole(MANY - 1)),
    "one_hot": lambda: torch.nn.functional.one_hot(whole(MANY - 1)),
    "repeat_interleave": lambda: torch.repeat_interleave(whole(MANY)),
    "repeat_interleave past all numbers": lambda: torch.repeat_interleave(whole((1 << 63) - 1)),
    "histogramdd": lambda: torch.histogramdd(_image(5, 2), [1 << 20, 1 << 20]),
    "nonzero": lambda: often(True).nonzero(),
    "masked_select": lambda: often(1.0).masked_select(often(True)),
    "index by a mask": lambda: often(1.0)[often(True)],
    "unique_dim": lambda: often(1.0, MANY, 1).unique(dim=0),
    "cov": lambda: torch.cov(often(1.0, 1 << 16, 2)),
    "tril_indices": lambda: torch.tril_indices(1 << 20, 1 << 20, device="cuda"),
    "arange": lambda: torch.arange(1 << 40, device="cuda"),
    "empty_strided": lambda: torch.empty_strided((2,), (1 << 40,), device="cuda"),
    "resize": lambda: whole(0).resize_(1 << 40),
}


def carried_out(call):
    """What came of a call, by the end of which the device is through with it."""
    try:
        call()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return "ended"


def main(times=1):
    """All calls, so many times each."""
    for name, call in CALLS.items():
        longest, outcomes = 0.0, set()
        for _ in range(int(times)):
            began = time.monotonic()
            outcomes.add(carried_out(call))
            longest = max(longest, time.monotonic() - began)
        said = {"call": name, "outcomes": sorted(outcomes), "longest_s": round(longest, 3)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
