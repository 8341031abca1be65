"""Ctrl-C at each wire step of a notebook, one step at a time, and what is left afterwards.

A wire step is a place where a frame is queued, sent, taken in or waited for: each begins with
`quiet`, or is a poll of the socket. `Steps` counts them and strikes at one: before a block of
`quiet`, inside it (the signal is put off to its end), or in the poll. A `Walk` interrupts the
notebook below at the first step, then at the second, until it is through without being struck.
"""

import gc
import signal
from contextlib import contextmanager

import torch

from jgpu import errors
from jgpu.device import current
from jgpu.device.client.link import Link
from jgpu.device.interrupts import quiet

__all__ = ["Steps", "Walk", "connecting"]

#: floats of an upload through the arena in two pieces
_LARGE = (2 << 20) + 1000


class Steps:
    """Counts the steps from `begin` on, and sends SIGINT at one of them."""

    def __init__(self):
        self.count = self.strike_at = 0
        self.counts = False

    def begin(self, strike_at):
        """Count from here; 0 strikes nowhere."""
        self.count, self.strike_at, self.counts = 0, strike_at, True

    def end(self):
        """Count no more; whether the step was reached."""
        self.counts = False
        return self.count >= self.strike_at

    def pass_by(self):
        """Another step."""
        if self.counts:
            self.count += 1
            if self.count == self.strike_at:
                signal.raise_signal(signal.SIGINT)

    @contextmanager
    def watched(self):
        """Have all steps of this process counted."""
        enter, receive, connect = quiet.__enter__, Link.receive, current.session.connection._connect

        def entering(block):
            outermost = not quiet.depth()
            if outermost:
                self.pass_by()
            enter(block)
            if outermost:
                self.pass_by()

        def receiving(link, timeout_s=0.0):
            if timeout_s:
                self.pass_by()
            receive(link, timeout_s)

        def connecting():
            self.pass_by()
            return connect()

        quiet.__enter__, Link.receive = entering, receiving
        current.session.connection._connect = connecting
        try:
            yield self
        finally:
            quiet.__enter__, Link.receive = enter, receive
            current.session.connection._connect = connect


class Notebook:
    """What a lesson does with a device, each way of speaking to it at least once."""

    def __init__(self, device, size):
        self.device, self.size = device, size
        #: tensors by name that are not written any more
        self.made = {}
        self.events = []
        self.filled = None

    def run(self):
        """All of it; what it printed."""
        return [self.transfers(), self.training(), self.asking(), self.drawing(), self.growing()]

    def event(self):
        if self.device == "cpu":
            return
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record()

    def transfers(self):
        host = torch.arange(float(_LARGE))
        self.event()
        large = self.made["large"] = host.to(self.device)
        self.filled = torch.empty(_LARGE, device=self.device)
        self.filled.copy_(host)
        small = torch.empty(self.size, device=self.device)
        small.copy_(host[: self.size])
        doubled = self.made["doubled"] = small * 2
        self.event()
        tail = large[-20_000:].cpu()
        return tail.sum().item(), doubled.tolist(), self.filled[self.size].item()

    def training(self):
        torch.manual_seed(self.size)
        model = torch.nn.Linear(self.size, 2).to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        x = torch.linspace(0, 1, 3 * self.size).reshape(3, self.size).to(self.device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if self.device != "cpu":
            torch.cuda.synchronize()
            self.event()
            self.events[-1].synchronize()
        return losses

    def asking(self):
        x = torch.arange(float(self.size), device=self.device)
        found = self.made["found"] = (x > 2).nonzero()
        spectrum = self.made["spectrum"] = torch.fft.rfft(x)
        return found.shape, spectrum.abs().sum().item(), bool(torch.equal(x, x + 0))

    def drawing(self):
        generator = torch.Generator(self.device)
        generator.manual_seed(7)
        first = torch.rand(self.size, device=self.device, generator=generator)
        state = generator.get_state()
        second = torch.rand(3, device=self.device, generator=generator)
        generator.set_state(state)
        again = torch.rand(3, device=self.device, generator=generator)
        return first.tolist(), torch.equal(second, again)

    def growing(self):
        x = torch.arange(4.0, device=self.device)
        shown = x.view(2, 2)
        x.resize_(self.size)
        x[:4] = 7
        return shown.tolist()


class Walk:
    """One way through the notebook's steps, in a process with a seat."""

    def __init__(self, steps, every=1, number=0):
        self.steps, self.every, self.number = steps, every, number
        #: steps that were struck, and those after which the notebook went on all the same
        self.struck = self.survived = 0
        Notebook("cuda", 5).run()  # modules are imported at the first use
        gc.collect()
        gc.freeze()  # what is looked for is made from here on
        self.kept = torch.arange(100.0).cuda()
        self.twice = self.kept * 2
        torch.cuda.synchronize()
        self.generation = current.session.connection.generation
        self.session = current.session.connection.link.welcome.session
        self._leave_nothing()
        self.baseline = self._held()

    def go(self):
        """Interrupt at each step; returns how many there were."""
        at = 1 + self.number % self.every
        while self._strike(at):
            at += self.every
        self.kept = self.twice = None  # the next walk's count is without them
        return self.struck

    def _strike(self, at):
        size = 5 + (at + self.number) % 41  # other programs, other questions
        notebook = Notebook("cuda", size)
        expected = Notebook("cpu", size)
        answers = expected.run()
        self.steps.begin(at)
        try:
            found = notebook.run()
        except KeyboardInterrupt:
            found = None
        finally:
            reached = self.steps.end()
        torch.set_grad_enabled(True)
        if not reached:
            assert found == answers
            return False
        self.struck += 1
        self.survived += found is not None
        self._check_left(notebook, expected)
        assert Notebook("cuda", size).run() == answers
        assert torch.equal(self.kept.cpu(), torch.arange(100.0))
        assert torch.equal((self.twice + self.kept).cpu(), 3 * torch.arange(100.0))
        assert quiet.depth() == 0
        del notebook, expected
        self._leave_nothing()
        assert self._held() == self.baseline
        return True

    def _check_left(self, notebook, expected):
        """Each tensor that there is has its value, or says why not; each event is over."""
        recorded = [event for event in notebook.events if event._recorded]
        for event in notebook.events:
            event.synchronize()
            assert event.query()
        for event in recorded:
            assert event.elapsed_time(recorded[0]) <= 0
        for name, tensor in notebook.made.items():
            try:
                assert torch.equal(tensor.cpu(), expected.made[name]), name
            except (errors.PoisonedTensor, errors.WorkCancelled):
                continue
        if notebook.filled is not None:
            try:
                host = notebook.filled.cpu()
            except (errors.PoisonedTensor, errors.WorkCancelled):
                return
            whole = torch.arange(float(_LARGE))
            assert bool(((host == whole) | (host == 0)).all())

    def _leave_nothing(self):
        gc.collect()
        torch.cuda.synchronize()

    def _held(self):
        """What both ends have of this session."""
        session = current.session
        assert session.connection.generation == self.generation
        assert session.connection.link.welcome.session == self.session
        used = session.memory().used
        requests, buffers = session.requests, session.buffers
        for part in (session.connection, requests, buffers):
            part.validate()
        assert requests.arena_is_free
        assert not requests.takes_back
        waiting = [len(requests), len(requests.failures), len(buffers.poisoned), len(session.log)]
        ring = session.connection.link.arena.ring
        assert ring.released == ring.reserved
        return waiting, used, buffers.held.nbytes, len(buffers.held)


def connecting(steps, at):
    """Strike while the connection is made; whether the step was reached.

    Whatever is struck, what is drawn afterwards is what the seed says, or what follows it.
    """
    session = current.session
    session.connection.lost(errors.DeviceLost("A test goes on."))
    torch.manual_seed(at)
    drawn = torch.rand(8)
    torch.manual_seed(at)
    steps.begin(at)
    try:
        found = torch.rand(4, device="cuda").tolist()
    except KeyboardInterrupt:
        found = None
    finally:
        reached = steps.end()
    first, second = drawn[:4].tolist(), drawn[4:].tolist()
    after = torch.rand(4, device="cuda").tolist()
    if found is None:
        assert after in (first, second)
    else:
        assert (found, after) == (first, second)
    return reached
