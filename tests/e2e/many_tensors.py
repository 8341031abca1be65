"""Makes and frees very many tensors and generators, a phase for each line that it reads.

    python many_tensors.py

After each phase it writes a line of JSON: what came of it, and how long its program took.
"""

import json
import sys
import time

import torch

kept = []
generators = []
x = torch.ones((), device="cuda")


def come_and_go(count):
    """Tensors that nobody keeps: what the others are compared with."""
    made = x
    for _ in range(count):
        made = x + 1
    return made.item()


def keep(count):
    """So many live tensors."""
    kept.extend(x + 1 for _ in range(count))
    return kept[-1].item()


def rest(count):
    """Nothing at all, so many milliseconds long."""
    time.sleep(count / 1000)
    return len(kept)


def busy(count):
    """Python's own work, none of jgpu's, so many milliseconds long."""
    ended = time.monotonic() + count / 1000
    done = 0
    while time.monotonic() < ended:
        done += len([str(k) for k in range(1000)])
    return done


def free(count):
    """All of them at once; the next line is told."""
    kept.clear()
    return (x + 1).item()


def fill(count):
    """Tensors until one is refused."""
    try:
        keep(count)
    except torch.OutOfMemoryError:
        return len(kept)
    return kept[0].item()


def draw(count):
    """As many generators, each of which draws once."""
    generators.extend(torch.Generator(device="cuda").manual_seed(k) for k in range(count))
    made = [torch.rand(1, device="cuda", generator=each) for each in generators]
    return torch.stack(made[:1000]).sum().item()


PHASES = {each.__name__: each for each in (come_and_go, keep, rest, busy, free, fill, draw)}


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    x.item()
    say("ready")
    for line in sys.stdin:
        name, count = line.split()
        began = time.monotonic()
        result = PHASES[name](int(count))
        ended = time.monotonic()
        say(json.dumps({"result": result, "began": began, "ended": ended}))


if __name__ == "__main__":
    main()
