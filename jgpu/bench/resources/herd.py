"""Clients that come all at once, forked of this process: a program that `Herd` talks to by lines.

Its one argument is a JSON list, of each client its environment and, for other users, uid and group.
Each line on its input lets all of them take the next step; it answers with a list of the seconds
that each took.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from typing import IO, Any

import torch

from jgpu.device import current
from jgpu.device.activate import activate
from jgpu.kernelprovider.environment import furnish
from jgpu.kernelprovider.seat import take

#: after which every process ends, whatever it waits for
DEADLINE_S = 240
#: rows of what a cell multiplies
SIZE = 256


def become(client: dict[str, Any]) -> None:
    if "uid" in client:
        os.setgroups([client["group"]])
        os.setgid(client["uid"])
        os.setuid(client["uid"])
    os.environ.update(client["environ"])


def join(client: dict[str, Any]) -> None:
    name = client["name"]
    seat = take(os.environ, kernel_id=name, label=f"{name}.ipynb")
    furnish(os.environ, where=seat.address, ticket=seat.ticket, kernel_id=name)
    torch.cuda.init()


def compute(_: dict[str, Any]) -> None:
    value = torch.ones(SIZE, SIZE, device="cuda")
    (value @ value).sum().item()


def live(client: dict[str, Any], gate: int, said: int) -> None:
    """A client's life: each step when it may, and a line when it is done."""
    signal.alarm(DEADLINE_S)
    for step in (become, join, compute):
        if step is not become:
            os.read(gate, 1)
        try:
            step(client)
            line: dict[str, object] = {"when": time.monotonic()}
        except BaseException:
            line = {"wrong": traceback.format_exc()}
        os.write(said, f"{json.dumps(line)}\n".encode())
    os.read(gate, 1)


def tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def heard(answers: Iterable[IO[str]]) -> list[float]:
    """When each was done; ends the program where one failed."""
    found = [json.loads(answer.readline()) for answer in answers]
    wrong = [each["wrong"] for each in found if "wrong" in each]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(found)} clients failed.\n{wrong[0]}")
    return [each["when"] for each in found]


def main(clients: list[dict[str, Any]]) -> None:
    """Fork, say so, and let all take a step for each line."""
    # Once for all: what a process's first op needs takes a second of the host's processor.
    os.environ["JGPU_TICKET"] = "herd"
    activate()
    current.warm()
    signal.alarm(DEADLINE_S)
    gates, answers = [], []
    for client in clients:
        gate, opener = os.pipe()
        reading, writing = os.pipe()
        if not os.fork():
            try:
                live(client, gate, writing)
            finally:
                os._exit(0)
        os.close(gate)
        os.close(writing)
        gates.append(opener)
        answers.append(os.fdopen(reading))
    heard(answers)
    tell("ready")
    for _ in sys.stdin:
        began = time.monotonic()
        for opener in gates:
            os.write(opener, b"!")
        tell([when - began for when in heard(answers)])
    for opener in gates:  # a byte, for clients hold each other's pipes open
        os.write(opener, b"!")
    for _ in clients:
        os.wait()


main(json.loads(sys.argv[1]))
