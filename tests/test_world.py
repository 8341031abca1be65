"""The suite's own ground: what a test sees of the host, and what becomes of what it starts.

Each runs pytest in a process of its own, with our `conftest` and a world that is not fit for tests.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import psutil
import pytest
import world

#: What a person's shell, a CI's runner or a notebook's terminal may have set.
FOREIGN = {
    "CI": "true",
    "COLUMNS": "20",
    "HTTPS_PROXY": "http://localhost:1",
    "JGPU_ADDRESS": "unix:/run/jgpu/broker.sock",
    "JGPU_TICKET": "none",
    "CUDA_VISIBLE_DEVICES": "",
    "JGPU_OUTER_CUDA_VISIBLE_DEVICES": "3",
    "JUPYTER_PATH": "/srv/jupyter",
    "LANG": "C",
    "LC_ALL": "C",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "7",
    "PIP_INDEX_URL": "http://localhost:1/simple",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # and soon begun
    "PYTHONPATH": str(Path(__file__).parent),
    "PYTHONSTARTUP": "/srv/startup.py",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TZ": "Asia/Kathmandu",
    "XDG_STATE_HOME": "/srv/state",
    "XDG_RUNTIME_DIR": "/run/user/1",
}


def inner(tmp_path, source, *options, ignored=()):
    """Run tests in a world of theirs, from a foreign one with these signals ignored."""
    (tmp_path / "test_inner.py").write_text(source)
    long = tmp_path / ("t" * 60)
    long.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider"]

    def foreign():
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.umask(0o077)

    return processes.start(
        [*command, "-c", "/dev/null", *options, str(tmp_path / "test_inner.py")],
        env=kept | FOREIGN | {"HOME": str(tmp_path), "TMPDIR": str(long)},
        cwd=tmp_path,
        preexec_fn=foreign,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


SEEN = """
import json, os, signal, subprocess, sys, tempfile
import world

INSIDE = '''
import json, os, signal
ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
blocked = list(signal.pthread_sigmask(signal.SIG_BLOCK, []))
umask = os.umask(0)
print(json.dumps([dict(os.environ), sorted(ignored), blocked, umask]))
'''

def test_it(package_index):
    told = {"pip": os.environ["PIP_INDEX_URL"], "proxy": os.environ["HTTPS_PROXY"]}
    for name in world.PACKAGES:
        os.environ.pop(name)
    os.environ["HOME"] = HOME
    done = subprocess.run([sys.executable, "-c", INSIDE], capture_output=True, check=True)
    told["inside"] = json.loads(done.stdout)
    told["tmp"] = tempfile.gettempdir()
    with open("told.json", "w") as file:
        json.dump(told, file)

HOME = os.environ["HOME"]
"""


def test_tests_see_nothing_of_whoever_runs_them(tmp_path):
    ignored = [signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGCHLD]
    with inner(tmp_path, SEEN, ignored=ignored) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    told = json.loads((tmp_path / "told.json").read_text())
    environ, still_ignored, blocked, umask = told["inside"]
    assert (still_ignored, blocked, umask) == ([signal.SIGPIPE, signal.SIGXFSZ], [], 0o022)
    base = Path(environ.pop("TESTS_OF_JGPU"))
    assert len(str(base)) < 20
    assert not base.exists()
    for name in ("LD_LIBRARY_PATH", "LC_CTYPE", "PYTEST_CURRENT_TEST", "PYTEST_VERSION"):
        environ.pop(name, None)
    home = str(base / "home")
    place = f"{home}/.local/state/jgpu"
    assert environ.pop("JGPU_ADDRESS").startswith(f"unix:{place}/")
    assert environ == {
        "COLUMNS": "80",
        "CUDA_VISIBLE_DEVICES": "3",
        "HOME": home,
        "IPYTHONDIR": f"{home}/ipython",
        "JUPYTER_CONFIG_DIR": f"{home}/config",
        "JUPYTER_DATA_DIR": f"{home}/data",
        "JUPYTER_RUNTIME_DIR": f"{home}/runtime",
        "LANG": "C.UTF-8",
        "LINES": "24",
        "PATH": os.environ["PATH"],
        "SHELL": "/bin/sh",
        "TERM": "xterm",
        "TZ": "UTC",
    }
    assert told["tmp"] == "/tmp"
    assert told["pip"] == FOREIGN["PIP_INDEX_URL"]
    assert told["proxy"] == FOREIGN["HTTPS_PROXY"]


def is_used(directory):
    """Whether a process works in it."""
    return any(p.info["cwd"] == str(directory) for p in psutil.process_iter(["cwd"]))


LEAVES = """
import subprocess
import processes
import pytest

processes._GRACE_S = 0.3

def test_a_child_is_left():
    print(subprocess.Popen(["sleep", "601"]).pid)

def test_a_daemon_is_left_that_hides():
    # An orphan in a session of its own, that the parent no longer knows.
    subprocess.run(["sh", "-c", "setsid sleep 602 & exit 0"], check=True)

@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(["sleep", "603"])
    yield process
    process.kill()
    process.wait()

def test_a_servers_fixture_is_left_alone(server):
    assert server.poll() is None

def test_it_is_still_there(server):
    assert server.poll() is None

@pytest.fixture(scope="module")
def forgotten():
    return subprocess.Popen(["sleep", "604"])

def test_a_fixture_that_ends_nothing(forgotten):
    pass
"""


def test_a_test_that_leaves_a_process_behind_fails_and_the_process_is_ended(tmp_path):
    with inner(tmp_path, LEAVES, "-rE") as process:
        said, _ = process.communicate()
    assert "5 passed, 3 errors" in said
    for name in ("a_child_is_left", "a_daemon_is_left_that_hides", "a_fixture_that_ends_nothing"):
        assert f"test_inner.py::test_{name} left processes behind" in said
    assert all(f": sleep {seconds}\n" in said for seconds in (601, 602, 604))
    assert ": sleep 603" not in said
    assert not is_used(tmp_path)


def test_a_process_that_becomes_another_program_is_seen_at_each_moment(tmp_path):
    script = tmp_path / "becomes.sh"
    script.write_text('exec sh "$0"\n')
    with processes.start(["sh", "-c", f"setsid sh {script} & echo $!"], stdout=-1, text=True) as it:
        found = psutil.Process(int(it.line()))
        try:
            assert all(found in processes.of_the_tests() for _ in range(200))
        finally:
            processes.kill([found])


STANDS_STILL = """
import subprocess, sys, threading
import pytest

sys.modules["conftest"]._TEARDOWN_S = 0.3

@pytest.fixture
def held():
    yield
    threading.Event().wait()

def test_it(held):
    assert False
"""


def test_a_teardown_that_stands_still_is_ended(tmp_path):
    with inner(tmp_path, STANDS_STILL) as process:
        said, _ = process.communicate()
    assert "TimeoutError: what a test leaves to be ended took more than 0.3 s" in said
    assert "1 failed, 1 error" in said


ENDED = """
import subprocess, time
import processes

processes._GRACE_S = 0.3

def test_it():
    subprocess.Popen(["sleep", "605"])
    with open("begun", "w"):
        pass
    time.sleep(100)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 2)])
def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path, number, status):
    with inner(tmp_path, ENDED, ignored=[signal.SIGINT, signal.SIGTERM]) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert is_used(tmp_path)
        process.send_signal(number)
        said, _ = process.communicate()
        assert process.returncode == status, said
    assert [
        p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "605"]
    ] == []


# -- processes -----------------------------------------------------------------------------------

#: A child in its parent's group and one in a session of its own; both hold the pipe.
FAMILY = "sleep 606 & setsid sleep 606 & echo $!; wait"


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_what_holds_a_pipe_is_ended_with_its_grandparent():
    process = processes.start(["sh", "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    pid = int(process.line())
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    assert process.communicate(timeout=10) == ("", None)
    assert not alive(pid)


def test_a_run_that_is_late_ends_with_all_it_started():
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        processes.run(["sh", "-c", FAMILY], capture_output=True, timeout=0.5)
    assert time.monotonic() - started < 10
    assert not alive(int(caught.value.output))


def test_a_line_that_does_not_come_is_an_end():
    with processes.start(["sh", "-c", FAMILY], stdout=subprocess.PIPE, text=True) as process:
        assert process.line().strip().isdecimal()
        assert process.line(timeout_s=0.2) == ""
        assert process.wait() == -signal.SIGKILL


def test_a_process_that_will_not_end_is_killed():
    code = "trap '' TERM; echo up; while :; do sleep 607; done"
    with processes.start(["sh", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.line() == "up\n"
        assert process.end(timeout_s=0.2) == -signal.SIGKILL


def test_a_home_is_short_and_empty_and_of_one_test(home):
    assert list(home.iterdir()) == []
    assert len(os.environ["JGPU_ADDRESS"]) < 100
    assert os.environ["JGPU_ADDRESS"].startswith(f"unix:{home}/")
    assert home.parent == Path(os.environ[world.MARK])
