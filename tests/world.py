"""The world that the tests see: nothing of whoever runs them, and nothing of the host's own jgpu.

`enter` gives this process, and so everything that it starts, an environment of few names, a home
below a short path, no broker but what it makes itself, and signals as a terminal leaves them: a
shell's background job, `nohup` and many CI runners hand ignored ones down, and programs inherit
that. `new_home` gives one test a home of its own.

Does not cover the processes that tests start (`processes`).
"""

import atexit
import itertools
import os
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

from jgpu.accelerator.place import SWITCH
from jgpu.kernelprovider.environment import HIDDEN, outer_environment
from jgpu.wire.address import ADDRESS, Address, user_socket

__all__ = ["MARK", "PACKAGES", "enter", "new_home", "switch"]

#: In the environment of every process of the tests; its value is the directory of this run.
MARK = "TESTS_OF_JGPU"
#: How pip gets packages, for the few tests that install some (the fixture `package_index`).
PACKAGES = {}

_KEPT = {"CUDA_HOME", "LD_LIBRARY_PATH", "NVIDIA_DRIVER_CAPABILITIES", "PATH", SWITCH, *HIDDEN}
#: What the host's arithmetic libraries have to know of its processor.
_KEPT_PREFIXES = ("NVPL_", "OPENBLAS_")
_OF_PACKAGES = {
    *("CURL_CA_BUNDLE", "HOME", "NETRC", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
    *("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
}
_SET = {
    "COLUMNS": "80",
    "LANG": "C.UTF-8",
    "LINES": "24",
    "SHELL": "/bin/sh",
    "TERM": "xterm",
    "TZ": "UTC",
}
#: pytest-xdist's, in the environment of a process that runs a part of the tests
_WORKER = "PYTEST_XDIST_WORKER"
_numbers = itertools.count()


def enter():
    """Leave the world of whoever runs the tests; false where this process is in one of ours."""
    _take_back_signals()
    worker = os.environ.get(_WORKER, "")
    if MARK in os.environ and not worker:  # a pytest that a test started
        return False
    os.umask(0o022)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    outside = outer_environment(os.environ)
    PACKAGES.update((k, v) for k, v in outside.items() if _is_of_packages(k))
    kept = {k: v for k, v in outside.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)}
    # A socket's path has 107 bytes, so neither TMPDIR nor the names of tests may be part of it.
    # What side by side with others runs a part of the tests has its own below that of the whole.
    above = os.environ[MARK] if worker else "/tmp"
    base = Path(tempfile.mkdtemp(prefix="" if worker else "jgpu-", dir=above))
    os.environ.clear()
    os.environ.update(kept | _SET | {MARK: str(base)} | _home_below(base / "home"))
    time.tzset()
    tempfile.tempdir = None  # chosen anew, without TMPDIR
    atexit.register(_remove, base, os.getpid())
    return True


def switch():
    """Whether this run is without the accelerator, as part of an environment."""
    return {name: value for name, value in os.environ.items() if name == SWITCH}


def new_home(monkeypatch):
    """Give the test a home of its own, Jupyter's directories and a private broker's place in it."""
    path = Path(os.environ[MARK], str(next(_numbers)))
    for name in [k for k in os.environ if k.startswith(("JGPU_", "JUPYTER_", "XDG_"))]:
        if name != SWITCH:
            monkeypatch.delenv(name)
    for name in (*HIDDEN, "PYTHONSTARTUP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in _home_below(path).items():
        monkeypatch.setenv(name, value)
    # The environment that the tests run in has our kernelspec, and the host may have one, too.
    for name in ("JUPYTER_PATH", "CONFIG_PATH"):
        for whose in ("ENV", "SYSTEM"):
            monkeypatch.setattr(f"jupyter_core.paths.{whose}_{name}", [])
    return path


def _home_below(path):
    """The variables of a home, which is made."""
    path.mkdir()
    home = {
        "HOME": str(path),
        "IPYTHONDIR": str(path / "ipython"),
        "JUPYTER_CONFIG_DIR": str(path / "config"),
        "JUPYTER_DATA_DIR": str(path / "data"),
        "JUPYTER_RUNTIME_DIR": str(path / "runtime"),
    }
    # The user's own socket, named, is as good as found (`address.find`), but that the system's,
    # which may be real here, is not looked for first.
    return home | {ADDRESS: str(Address(user_socket(home), "user"))}


def _is_of_packages(name):
    return name.upper() in _OF_PACKAGES or name.startswith("PIP_")


def _take_back_signals():
    """Ignored and blocked signals act again, here and in what is started from here."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python's own
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            if number == signal.SIGHUP:  # whoever said nohup means it; programs do not inherit this
                signal.signal(number, lambda *_: None)


def _remove(base, maker):
    if os.getpid() == maker:
        shutil.rmtree(base, ignore_errors=True)
