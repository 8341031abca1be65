"""A storm: one user does all that is known to do harm, while three others train beside it.

The hostile user's programs throw extremes at every op, make each call that is known to go on for
ever or to end its process, and take a lane for a minute with one program, of which they are killed
or interrupted in the midst. The others train three models without pause: each loss is, to the last
bit, that of the same lesson natively. How long they waited is printed, and kept by the long run.
"""

import contextlib
import json
import math
import os
import pickle
import signal
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import processes
import pytest
import torch
from endless import CALLS
from host import Host, until
from results import write_result
from trainer import KINDS

from jgpu.broker.executor.programs.precautions import PRECAUTIONS, unset
from jgpu.broker.flightpage import Kind, State

HERE = Path(__file__).parent
SEARCH = HERE.parents[1] / "broker" / "programs" / "hostile_values.py"
HOSTILE = "user4"
#: seconds without a word from a program of the hostile user's, after which it counts as stuck
SILENT_S = 120.0
#: a trainer's line, about
LINE_BYTES = 45
PRODUCTS = 12

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_every_precaution_has_its_call_in_the_storm():
    """Of those that stand before an op which would not end, or end its process, on the CPU."""
    harmful = {
        base
        for base, found in PRECAUTIONS.items()
        if "cpu" in found.devices and found.rule.__module__ != unset.__name__
    }
    assert sorted(harmful - {name.partition(" ")[0] for name in CALLS}) == []


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The losses of each kind of lesson, natively."""
    folder, losses = tmp_path_factory.mktemp("native"), {}
    command = [sys.executable, HERE / "trainer.py"]
    running = {k: processes.start([*command, k, "cpu", folder / k, "1"]) for k in KINDS}
    for kind, process in running.items():
        with process:
            assert process.wait() == 0
        losses[kind] = [line.split()[0] for line in (folder / kind).read_text().splitlines()]
    return losses


@contextlib.contextmanager
def started(directory):
    """A broker of 2 GiB with two lanes."""
    with contextlib.closing(Host(directory, "cpu", "--lanes", "2")) as made:
        yield made.start()


def peak_bytes(pid):
    """The most memory that a process has had at once."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10


class Trainer:
    """A user who trains models of one kind until told to stop."""

    def __init__(self, host, kind, user):
        self.kind = kind
        self.file = host.directory / kind
        self._program = host.program(HERE / "trainer.py", user, kind, "cuda", self.file)

    def goes_on(self, what, nbytes=1):
        """Wait until losses have come that were not there yet, so many bytes of them."""
        enough = self.size() + nbytes
        until(lambda: self.size() >= enough, f"a loss of {self.kind} {what}", SILENT_S)

    def size(self):
        """Bytes of what it wrote down."""
        assert self._program.poll() is None, f"{self.kind} came to an end"
        return self.file.stat().st_size if self.file.exists() else 0

    def stop(self):
        """Have it end, and see that it ends well."""
        out, _ = self._program.communicate("stop\n")
        assert (self._program.returncode, out) == (0, "")

    def losses(self):
        """(loss, the moment it was there, seconds that it was waited for) of all it wrote down."""
        for line in self.file.read_text().splitlines():
            loss, moment, waited = line.split()
            yield loss, float(moment), float(waited)


class Storm:
    """Three who train, and the stages of what is done beside them."""

    def __init__(self, host):
        self.host = host
        self.trainers = [Trainer(host, kind, f"user{k}") for k, kind in enumerate(KINDS, 1)]
        self.stages = {}
        for trainer in self.trainers:
            trainer.goes_on("at the beginning")
        self._executor = host.device["pid"]

    @contextlib.contextmanager
    def stage(self, name):
        """What is done in the block; by its end everybody has gone on training."""
        began = time.monotonic()
        yield
        for trainer in self.trainers:
            trainer.goes_on(f"after {name}")
        device = self.host.device
        assert (device["restarts"], device["pid"]) == (0, self._executor)
        self.stages[name] = (began, time.monotonic())

    def calm(self, losses):
        """A stage in which nothing is done beside them, until each has read so many losses."""
        with self.stage("calm"):
            for trainer in self.trainers:
                trainer.goes_on("in the calm", losses * LINE_BYTES)

    def over(self, expected):
        """All leave, nothing is left, and every loss was right; their waits by stage."""
        for trainer in self.trainers:
            trainer.stop()
        self.host.leave()
        device = self.host.device
        assert (device["restarts"], device["pid"]) == (0, self._executor)
        for trainer in self.trainers:
            lesson = expected[trainer.kind]
            for number, (loss, _, _) in enumerate(trainer.losses()):
                assert loss == lesson[number % len(lesson)], (trainer.kind, number)
        return {trainer.kind: self._waits(trainer) for trainer in self.trainers}

    def _waits(self, trainer):
        found = {}
        for name, (began, ended) in self.stages.items():
            waits = [waited for _, moment, waited in trainer.losses() if began <= moment <= ended]
            found[name] = {
                "losses": len(waits),
                "median_s": round(statistics.median(waits), 4),
                "longest_s": round(max(waits), 3),
            }
        return found


def told(waits):
    """Print how long everybody waited for a loss, without a storm and in it."""
    for kind, by_stage in waits.items():
        longest = ", ".join(f"{name} {each['longest_s']:.3f} s" for name, each in by_stage.items())
        sys.stdout.write(f"{kind}: the longest wait for a loss: {longest}\n")


# -- what is known to go on for ever -----------------------------------------------------------


def endless(host, times):
    """Make each of these calls so many times: what came of it; every one is through."""
    program = host.program(HERE / "endless.py", HOSTILE, times)
    found = []
    while line := program.line(SILENT_S):
        found.append(json.loads(line))
    assert program.wait(SILENT_S) == 0, f"ended after {found[-1:]}"
    assert [each["call"] for each in found] == list(CALLS)
    return found


# -- hostile values ----------------------------------------------------------------------------


def write_cases(file, *options):
    """Make cases for the hostile user; how many there are."""
    command = [sys.executable, SEARCH, "--write", file, *map(str, options)]
    done = processes.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout.splitlines()[-1])


@dataclass
class Sent:
    """What came of hostile cases."""

    cases: int = 0
    #: by outcome, as the hostile user saw it
    outcomes: Counter = field(default_factory=Counter)
    #: places of cases that ended the hostile user's own process, and its status
    ended: list = field(default_factory=list)
    #: the longest that a batch of cases took, in seconds
    longest_s: float = 0.0

    def add(self, said):
        """Take in a line of the client's."""
        self.cases += said["cases"]
        self.outcomes.update(said["outcomes"])
        self.longest_s = max(self.longest_s, round(said["s"], 3))


def send(host, file, places, limit_s):
    """Have programs make the cases at these places, for so long from the first ones on.

    Where a case ends its own process, another goes on behind it.
    """
    found, at, deadline = Sent(), places.start, math.inf
    progress = file.with_suffix(f".{places.start}")
    while at < places.stop and time.monotonic() < deadline:
        program = host.program(
            HERE / "hostile_client.py", HOSTILE, file, at, places.stop, progress,
            PYTHONPATH=str(SEARCH.parent),
        )  # fmt: skip
        while time.monotonic() < deadline and (line := program.line(SILENT_S)):
            said = json.loads(line)
            found.add(said)
            at = said["next"]
            deadline = min(deadline, time.monotonic() + limit_s)
        if time.monotonic() >= deadline:
            program.end(signal.SIGKILL)  # in the midst, which is a part of the storm
        elif at < places.stop:
            status = program.wait(SILENT_S)
            at = int(progress.read_text())
            found.ended.append([at, status])
            at += 1
    return found


def send_by_two(host, file, count, limit_s):
    """Two programs of the hostile user's make the cases side by side; what came of them."""
    halves = (range(count // 2), range(count // 2, count))
    with ThreadPoolExecutor(2) as both:
        futures = [both.submit(send, host, file, half, limit_s) for half in halves]
        return [future.result(timeout=limit_s + 4 * SILENT_S) for future in futures]


def figures_of(sent, file):
    """What is kept of hostile cases."""
    cases = pickle.loads(file.read_bytes())
    return {
        "cases": sum(each.cases for each in sent),
        "ops": len({op.name for op, _, _ in cases}),
        "outcomes": dict(sum((each.outcomes for each in sent), Counter()).most_common()),
        "longest_batch_s": max(each.longest_s for each in sent),
        "ended their own process": [
            [cases[at][0].name, repr(cases[at])[:600], status]
            for each in sent
            for at, status in each.ended
        ],
    }


# -- programs of a minute ----------------------------------------------------------------------


def size_for(seconds):
    """How large square matrices are whose product takes so long, alone, on one thread."""
    matrix, times = torch.rand(1000, 1000), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(5):
        began = time.monotonic()
        matrix @ matrix
        times.append(time.monotonic() - began)
    torch.set_num_threads(threads)
    return min(int(1000 * (seconds / min(times)) ** (1 / 3)), 6000)


class Long:
    """A program of the hostile user's whose products are on their way."""

    def __init__(self, host, size):
        self.host, self.size = host, size
        before = {row["id"] for row in host.status()["sessions"]}
        self.program = host.program(HERE / "long_program.py", HOSTILE, size, PRODUCTS)
        assert self.program.line() == "begun\n"
        (self.row,) = [row for row in host.status()["sessions"] if self._is_new(row, before)]
        self.page = host.flight_page()

    def _is_new(self, row, before):
        return row["user"] == HOSTILE and row["id"] not in before

    def at(self):
        """Which product it is at; -1 when at none."""
        for entry in self.page.entries():
            if entry.session == self.row["id"] and entry.state is State.WORKS:
                return entry.op if entry.kind is Kind.PROGRAM and entry.ops >= PRODUCTS else -1
        return -1

    def whole(self):
        """Seconds until it is through with all of them."""
        began = time.monotonic()
        assert self.program.line(10 * SILENT_S) == "True\n"
        self.page.close()
        return round(time.monotonic() - began, 3)

    def in_the_midst(self):
        """Wait until it is past its first products; at which one it is."""
        until(lambda: self.at() >= 2, "the third product", SILENT_S)
        return self.at()

    def gives_up(self, place, whole_s):
        """It was told to end at this product: no other begins; its lane and memory are free."""
        began, furthest = time.monotonic(), place
        while (now := self.at()) >= 0 and time.monotonic() < began + whole_s:
            furthest = max(furthest, now)
            time.sleep(0.002)
        assert furthest <= place + 2 < PRODUCTS
        return round(time.monotonic() - began, 3)

    def kill(self, whole_s):
        """Kill it in the midst; seconds until its lane and memory are free."""
        place = self.in_the_midst()
        held, _ = self._held()
        assert held[self.row["id"]] >= 4 * self.size**2
        os.kill(self.row["pid"], signal.SIGKILL)
        free_s = self.gives_up(place, whole_s)
        until(self._is_free, "the session's end and its free memory", 10.0)
        self.page.close()
        return free_s

    def interrupt(self, whole_s):
        """Interrupt it in the midst, and see that it goes on; seconds until its lane is free."""
        place = self.in_the_midst()
        self.program.send_signal(signal.SIGINT)
        free_s = self.gives_up(place, whole_s)
        assert self.program.line() == f"interrupted {self.size}\n"
        assert self.program.wait(SILENT_S) == 0
        self.page.close()
        return free_s

    def _is_free(self):
        """Its session is gone, and what is in use is all held by others."""
        held, used = self._held()
        return self.row["id"] not in held and used == sum(held.values())

    def _held(self):
        """Bytes of the device by session, and all that are in use, at one moment.

        From one moment to the next, what the trainers hold varies by more than a matrix.
        """
        report = self.host.status()
        (device,) = report["devices"]
        held = {
            row["id"]: row["resident_bytes"] + row["ephemeral_bytes"] - row["spilled_bytes"]
            for row in report["sessions"]
        }
        return held, device["used_bytes"]


# -- the storm ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_storm(tmp_path, expected):
    """Each kind of harm once: ops that are known to be delicate, products of half a second."""
    file = tmp_path / "cases"
    count, size = write_cases(file, "--delicate", "--cases", 1), size_for(0.4)
    with started(tmp_path) as host:
        storm = Storm(host)
        storm.calm(losses=200)
        with storm.stage("endless ops"):
            endless(host, 1)
        with storm.stage("hostile values"):
            assert send(host, file, range(count), 6.0).cases > 0
        with storm.stage("long programs"):
            Long(host, size).kill(whole_s=60)
            Long(host, size).interrupt(whole_s=60)
        told(storm.over(expected))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_storm_of_ten_minutes(tmp_path, expected):
    """All ops, and programs of 64 seconds; figures go into `bench/results`."""
    delicate, every = tmp_path / "delicate", tmp_path / "every"
    few = write_cases(delicate, "--delicate", "--cases", 8)
    many, size = write_cases(every, "--databases", "--cases", 1), size_for(64 / PRODUCTS)
    with started(tmp_path) as host:
        storm, began = Storm(host), time.monotonic()
        storm.calm(losses=500)
        with storm.stage("endless ops"):
            calls = endless(host, 3)
        with storm.stage("values at delicate ops"):
            at_delicate = send_by_two(host, delicate, few, 60.0)
        with storm.stage("values at every op"):
            at_every = send_by_two(host, every, many, 150.0)
        with storm.stage("a program of a minute"):
            long = {"size": size, "products": PRODUCTS, "whole_s": Long(host, size).whole()}
        with storm.stage("such programs killed and interrupted"):
            long["killed_free_s"] = Long(host, size).kill(long["whole_s"])
            long["interrupted_free_s"] = Long(host, size).interrupt(long["whole_s"])
        with storm.stage("two such programs, killed"):
            both = [Long(host, size), Long(host, size)]
            long["both_killed_free_s"] = [each.kill(long["whole_s"]) for each in both]
        peak, seconds = peak_bytes(host.device["pid"]), time.monotonic() - began
        waits = storm.over(expected)
    told(waits)
    write_result("storm", {
        "seconds": round(seconds),
        "trainers": waits,
        "endless ops": calls,
        "values at delicate ops": figures_of(at_delicate, delicate),
        "values at every op": figures_of(at_every, every),
        "long programs": long,
        "executor_peak_mib": peak >> 20,
        "restarts": 0,
        "wrong losses": 0,
    })  # fmt: skip
