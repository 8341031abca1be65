"""Values that a kernel would trust: told as errors, on their lines, to their notebook alone."""

from typing import Final

from jgpu.gpucheck.stand import Stand

__all__ = ["asserted", "indices", "stale"]

#: what torch raises natively on the CPU where it is no index
_ERRORS: Final = {"asserted": "RuntimeError", "indices": "IndexError"}
#: of the text of each error, by the case's name
_WORDS: Final = {
    "multinomial of NaN": "inf`, `nan`",
    "multinomial of negative numbers": "element < 0",
    "multinomial of nothing": "sum of probabilities <= 0",
    "bernoulli of 2": "p_in >= 0 && p_in <= 1",
    "poisson of -1": "non-negative",
    "binary_cross_entropy of 2": "between 0 and 1",
    "masked_scatter of too little": "source < number of ones in mask",
    "normal with a negative deviation": "std >= 0.0",
    "repeat_interleave of -1": "can not be negative",
    "inverse of zeros": "singular",
    "cholesky of zeros": "not positive-definite",
    "solve by zeros": "singular",
}


def indices(stand: Stand) -> None:
    """A label, token or index out of bounds, forward and backward, is an IndexError."""
    _wrong(stand, "indices")


def asserted(stand: Stand) -> None:
    """What CUDA's kernels assert is an error, and the device lives."""
    _wrong(stand, "asserted")


def _wrong(stand: Stand, which: str) -> None:
    with stand.broker() as place:
        before = place.device().pid
        neighbour = place.start("busy", user="user2")
        neighbour.ask("go")
        found = place.seat("values", which)
        told = neighbour.ask("end")
        neighbour.end()
        after = place.device()
    for name, each in found.items():
        words = _WORDS.get(name, "holds a value that is not in")
        is_right = _ERRORS[which] in each["errors"] and words in each["text"]
        text = f"{each['errors'][0]}: {each['text']}" if each["errors"] else "no error"
        stand.check(name, is_right, text)
        if is_right:
            stand.check(f"{name}: names its line", each["here"], each["text"])
        stand.check(f"{name}: others stay", each["kept"] is True, each["kept"])
    stand.same("the executor is the same", (after.pid, after.restarts), (before, 0))
    stand.check("a neighbour's sums are right", told["same"], told)
    stand.figure("a neighbour's steps meanwhile", told["steps"])


def stale(stand: Stand) -> None:
    """Bytes that another user freed are seen by nobody."""
    with stand.broker(lanes=1) as place:
        for turn in range(3):
            written = place.seat("stale", "write", user="user2")
            found = place.seat("stale", "look", user="user1")
            stand.check(f"turn {turn}: something was written", written["bytes"] > 0)
            for name, seen in found.items():
                stand.same(f"turn {turn}: {name}", seen, 0)
