"""`jgpu run`: environment, exit status, signals, and the seat given up whatever happens."""

import json
import os
import signal
import subprocess
import sys
import threading

import processes
import psutil
import pytest
from real_broker import status, until

from jgpu.cli import _leftovers, main
from jgpu.wire.messages import LeaveSeat, TakeSeat

PRINT = "import json, os; print(json.dumps(dict(os.environ)))"


def command(*words):
    return [sys.executable, "-m", "jgpu", "run", *words]


def test_a_program_gets_a_seat_and_sees_no_gpu(control):
    words = ["--user", "user1", "--priority", "low", "--", sys.executable, "-c", PRINT]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    answer = processes.run(command(*words), capture_output=True, check=True, env=environ)
    inside = json.loads(answer.stdout)
    assert inside["JGPU_TICKET"] == "ticket-1"
    assert inside["JGPU_ADDRESS"] == control.address
    assert (inside["JGPU_USER"], inside["JGPU_PRIORITY"]) == ("user1", "low")
    assert inside["CUDA_VISIBLE_DEVICES"] == ""
    take, leave = control.requests
    assert isinstance(take, TakeSeat)
    assert take.user == "user1"
    assert take.label.startswith("python")
    assert leave == LeaveSeat("ticket-1", restart=False)


@pytest.mark.parametrize(
    ("script", "expected"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15)]
)
def test_the_exit_status_is_the_programs(control, script, expected):
    assert main(["run", "--", "/bin/sh", "-c", script]) == expected
    assert isinstance(control.requests[-1], LeaveSeat)


def test_the_dashes_may_be_left_out_and_inner_ones_stay(control, tmp_path):
    out = tmp_path / "out"
    script = 'echo "$@" > "$0"'
    assert main(["run", "/bin/sh", "-c", script, str(out), "--", "--x"]) == 0
    assert out.read_text() == "-- --x\n"


def test_a_program_that_cannot_run_is_a_sentence(control, capsys, tmp_path):
    assert main(["run", "--", "/no/such"]) == 127
    (tmp_path / "file").touch()
    assert main(["run", "--", str(tmp_path / "file")]) == 126
    assert "Permission denied" in capsys.readouterr().err
    assert sum(isinstance(r, LeaveSeat) for r in control.requests) == 2


def test_no_program_is_a_usage_error(control):
    with pytest.raises(SystemExit) as caught:
        main(["run", "--user", "user1"])
    assert caught.value.code == 2
    assert control.requests == []


def test_nothing_is_run_without_a_seat(monkeypatch, tmp_path):
    monkeypatch.setenv("JGPU_ADDRESS", f"unix:{tmp_path}/none")
    assert main(["run", "--", "/usr/bin/touch", str(tmp_path / "ran")]) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_reach_the_program_once(control, tmp_path, number):
    code = (
        "import signal, sys\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])\n"
        "print('ready', flush=True)\n"
        f"signal.sigwait([{int(number)}])\n"
        f"more = signal.sigtimedwait([{int(number)}], 0.1)\n"
        "sys.exit(9 if more is None else 10)\n"
    )
    process = processes.start(command("--", sys.executable, "-c", code), stdout=subprocess.PIPE)
    with process:
        assert process.line() == b"ready\n"
        process.send_signal(number)
        assert process.wait(20) == 9
    assert isinstance(control.requests[-1], LeaveSeat)


@pytest.mark.usefixtures("control")
def test_a_program_does_not_outlive_the_command_that_is_killed():
    script = "echo $$; exec sleep 1000"
    with processes.start(command("/bin/sh", "-c", script), stdout=subprocess.PIPE) as running:
        pid = int(running.line())
        running.kill()
        until(lambda: not psutil.pid_exists(pid))


#: a grandchild in the program's process group, and one in a session of its own
FAMILY = (
    "import subprocess, sys, time\n"
    "for apart in (False, True):\n"
    "    child = subprocess.Popen(['sleep', '1000'], start_new_session=apart)\n"
    "    print(child.pid, flush=True)\n"
)


@pytest.mark.usefixtures("control")
@pytest.mark.parametrize("victim", ["command", "program"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_what_a_program_started_ends_where_one_of_them_is_killed(victim, number):
    script = f"{FAMILY}import os\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n"
    words = command("--", sys.executable, "-c", script)
    with processes.start(words, stdout=subprocess.PIPE) as running:
        *grandchildren, program = (int(running.line()) for _ in range(3))
        os.kill(running.pid if victim == "command" else program, number)
        until(lambda: not any(map(psutil.pid_exists, [*grandchildren, program])))
        expected = -number if (victim, number) == ("command", signal.SIGKILL) else 128 + number
        assert running.wait(20) == expected


@pytest.mark.usefixtures("control")
def test_what_a_program_started_stays_where_it_ended_by_itself():
    with processes.start(
        command("--", sys.executable, "-c", FAMILY), stdout=subprocess.PIPE
    ) as running:
        grandchildren = [psutil.Process(int(running.line())) for _ in range(2)]
        assert running.wait(20) == 0
        assert all(process.is_running() for process in grandchildren)
        processes.kill(grandchildren)


@pytest.mark.usefixtures("control")
def test_a_program_is_told_once_that_the_command_is_gone(tmp_path):
    out = tmp_path / "out"
    script = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print(os.getpid(), flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "more = signal.sigtimedwait([signal.SIGTERM], 0.3)\n"
        f"open({str(out)!r}, 'w').write(str(more))\n"
    )
    words = command("--", sys.executable, "-c", script)
    with processes.start(words, stdout=subprocess.PIPE) as running:
        program = int(running.line())
        running.kill()
        until(lambda: not psutil.pid_exists(program))
    assert out.read_text() == "None"


def test_who_ignores_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(_leftovers, "_GRACE_S", 0.1)
    script = "trap '' TERM; echo ready; while :; do sleep 0.01; done"
    environ = dict(os.environ) | {"MARKED": "1"}
    with processes.start(["sh", "-c", script], stdout=subprocess.PIPE, env=environ) as running:
        assert running.line() == b"ready\n"
        reaper = threading.Thread(target=running.wait, args=(20,))
        reaper.start()
        _leftovers._end(b"MARKED=1", set())
        reaper.join(10)
        assert running.returncode == -signal.SIGKILL


def test_a_program_inherits_no_blocked_signal(control, tmp_path):
    code = "import signal, sys; sys.exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    assert main(["run", "--", sys.executable, "-c", code]) == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@pytest.mark.e2e
def test_a_seat_at_a_real_broker_is_taken_and_given_up(broker):
    answer = processes.run(command("--", "/bin/sh", "-c", "echo $JGPU_TICKET"), capture_output=True)
    assert answer.returncode == 0
    assert len(answer.stdout) > 16
    assert status(broker)["sessions"] == []


@pytest.mark.e2e
def test_a_private_broker_is_started_outlives_the_program_and_is_used_again(home, tmp_path):
    runs = [
        processes.run(command("--", "/bin/true"), capture_output=True, text=True) for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs
    (lock,) = home.glob(".local/state/jgpu/*/broker.sock.lock")
    pid = int(lock.read_text())
    assert os.getpgid(pid) == pid
    os.kill(pid, signal.SIGTERM)
    until(lambda: not lock.with_name("broker.sock").exists())
