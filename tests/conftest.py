"""What holds for all tests: the world they see, the examples they try, what they leave behind.

Property tests try the same examples on every run; `pytest --hypothesis-profile=search` looks for
new ones. A test that leaves a process behind fails, and the process is ended.
"""

import os
import signal
from contextlib import contextmanager

import processes
import pytest
import world
from hypothesis import HealthCheck, settings

_TEARDOWN_S = 60.0
ENTERED = world.enter()  # torch, which reads the environment, is imported after this

settings.register_profile(
    "exact",
    # That of a person's machine also where hypothesis finds a CI's.
    settings.get_profile("default"),
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],  # a loaded machine is no fault of a test
)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("exact")


@pytest.fixture
def home(monkeypatch):
    """A home of the test's own; no broker is found from it."""
    return world.new_home(monkeypatch)


@pytest.fixture
def package_index(monkeypatch):
    """pip gets packages from where it does for whoever runs the tests."""
    for name, value in world.PACKAGES.items():
        monkeypatch.setenv(name, value)


# -- what tests leave behind ---------------------------------------------------------------------


class Watcher:
    """Fails the test after which a process is left that no fixture of a wider scope has started."""

    def __init__(self):
        self.watch = processes.Watch()
        self.seen = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        """What a fixture for several tests starts may stay as long as the fixture does."""
        if fixturedef.scope == "function":
            return (yield)
        spawned, before = self.watch.spawned, processes.of_the_tests()
        try:
            return (yield)
        finally:
            if self.watch.spawned != spawned:
                self.watch.own(id(fixturedef), processes.of_the_tests() - before)

    def pytest_fixture_post_finalizer(self, fixturedef):
        """What it started has to be gone."""
        if self.watch.disown(id(fixturedef)):
            self.seen = -1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        """The end of a test has a deadline of its own, and leaves no process behind."""
        try:
            with _deadline(item.config):
                return (yield)
        finally:
            left = self.end_what_is_left()
            assert not left, f"{item.nodeid} left processes behind:\n" + "\n".join(left)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session):
        """An interrupted run leaves nothing behind, either."""
        try:
            with _deadline(session.config):
                return (yield)
        finally:
            self.end_what_is_left()

    def end_what_is_left(self):
        """Kill it; what it was."""
        if self.seen == self.watch.spawned:
            return []
        self.seen = self.watch.spawned
        left = self.watch.left()
        told = sorted(map(processes.described, left))
        processes.kill(left)
        return told


@contextmanager
def _deadline(config):
    """Raise again and again where something takes minutes; the test's own timer is over by now."""
    if config.getoption("usepdb"):
        yield
        return

    def late(*_):
        raise TimeoutError(f"what a test leaves to be ended took more than {_TEARDOWN_S:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _TEARDOWN_S, _TEARDOWN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """A process that is to run a part of the tests knows where packages come from."""
    node.workerinput["packages"] = world.PACKAGES


def pytest_configure(config):
    """Watch processes, and end well where a CI ends us."""
    if not ENTERED:
        return
    if hasattr(config, "workerinput"):
        world.PACKAGES.update(config.workerinput["packages"])
    if not config.getoption("numprocesses", None):  # else the processes with the tests watch
        config.pluginmanager.register(Watcher(), "jgpu-watcher")
    own = os.getpid()

    def terminated(number, _):
        if os.getpid() != own:  # a child that was forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        pytest.exit("ended by SIGTERM", 128 + number)

    signal.signal(signal.SIGTERM, terminated)
