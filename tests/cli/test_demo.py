"""`jgpu demo`: lessons of three users in real kernels, its table, and what it says of failures."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import processes
import pytest
from msgspec.structs import replace
from rich.console import Console

from jgpu.cli import main
from jgpu.demo.display import Display, summary
from jgpu.demo.evidence import Evidence
from jgpu.demo.lesson import Lesson
from jgpu.wire.reports.report import (
    BrokerReport,
    DeviceReport,
    LaneReport,
    Report,
    SessionReport,
    UserReport,
)

NAMES = ("02-cnn-digits", "03-transformer-text", "04-vae-digits", "05-fine-tuning")
TRAIN = """
import torch
weight = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    (weight * weight).sum().backward()
    optimizer.step()
"""
RESULT = 'print(f"loss {(weight * weight).sum().item():.3f}")'
DEVICE = DeviceReport(
    name="CPU (shared)",
    kind="cpu",
    used_bytes=3 << 20,
    capacity_bytes=6 << 30,
    lanes=(LaneReport(id=0), LaneReport(id=1)),
    policy="fair",
    pid=7,
)
STATUS = Report(
    broker=BrokerReport(),
    devices=(DEVICE,),
    users=(
        UserReport(name="user1", device_seconds=3.0),
        UserReport(name="user2", device_seconds=1.0),
        UserReport(name="whoever asks"),
    ),
)


def write_lessons(directory, result=RESULT):
    directory.mkdir()
    for name in NAMES:
        cell = nbformat.v4.new_code_cell(result, metadata={"tags": ["result"]})
        cells = [nbformat.v4.new_markdown_cell("# Lesson"), nbformat.v4.new_code_cell(TRAIN), cell]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), directory / f"{name}.ipynb")
    return directory


def demo(*arguments, timeout_s=processes.DEADLINE_S):
    command = [sys.executable, "-m", "jgpu", "demo", *arguments]
    return processes.run(command, capture_output=True, text=True, timeout=timeout_s)


def shown(renderable):
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def a_lesson(**fields):
    session = SessionReport(
        id=1,
        state="waiting",
        waits_for=("user2",),
        lane=1,
        iterations=12,
        resident_bytes=1 << 20,
        ephemeral_bytes=2048,
        device_seconds=2.5,
    )
    fields = {
        "user": "user1",
        "state": "running",
        "cell": 2,
        "cells": 9,
        "session": session,
    } | fields
    return Lesson(Path("/lessons/a.ipynb"), **fields)


# -- the table -----------------------------------------------------------------------------------


def test_the_table_is_printed_where_there_is_no_terminal():
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture, Display(console) as display:
        display.update([a_lesson()], STATUS)
        display.update([a_lesson()], STATUS)  # too soon to print again
        display.update([a_lesson(state="done", result="x")], STATUS, last=True)
    text = capture.get()
    assert text.count("NOTEBOOK") == 2
    assert "CPU (shared): 3 MiB of 6 GiB in use, lanes: 2, policy fair" in text
    first, last = (line.split() for line in text.splitlines() if line.strip().startswith("user1"))
    assert " ".join(first) == "user1 a 2/9 1 waiting for user2 12 1 MiB 2 KiB 2.5 s"
    assert " ".join(last) == "user1 a 2/9 done 12 1 MiB 2 KiB 2.5 s"


def test_the_table_is_drawn_in_place_on_a_terminal():
    console = Console(width=120, force_terminal=True, color_system=None)
    with console.capture() as capture, Display(console) as display:
        display.update([a_lesson()], STATUS)
        display.update([a_lesson()], STATUS)
    assert "\x1b[1A" in capture.get()


def test_a_lesson_without_a_session_says_how_far_it_is():
    lessons = [a_lesson(session=None, result="accuracy 98 %"), a_lesson(user="user2")]
    text = shown(summary(lessons, STATUS, Evidence()))
    assert "accuracy 98 %" in text
    assert "Device time: user1 3.0 s (75 %), user2 1.0 s (25 %)." in text
    assert "whoever" not in text


def test_a_failure_is_in_the_summary_with_its_traceback():
    failed = a_lesson(state="failed", problem="cell 2 raised [bold]: x", traceback="Traceback: x")
    text = shown(summary([failed], STATUS, Evidence()))
    assert "cell 2 raised [bold]: x" in text
    assert "a:\nTraceback: x" in text


# -- who holds the device ------------------------------------------------------------------------


@pytest.fixture
def process():
    """Starts processes with an environment; ends them."""
    running = []

    def start(**environ):
        code = "import sys; print(flush=True); sys.stdin.read()"
        made = processes.start(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ},
        )
        running.append(made)
        assert made.line()
        return made.pid

    yield start
    for each in running:
        with each:
            pass


def test_one_executor_and_kernels_without_gpus_are_what_is_due(process):
    evidence = Evidence()
    kernel = process(CUDA_VISIBLE_DEVICES="")
    evidence.look(STATUS, process(), [kernel])
    assert (evidence.executors, evidence.kernels) == ({7}, {kernel})
    assert evidence.one_executor
    assert evidence.no_context_in_kernels
    one, none = evidence.sentences()
    assert one == "One executor process (pid 7) computed for all 1 kernels."
    assert none.startswith("No kernel has a GPU context (1 looks at 1 kernel processes")


def test_a_kernel_that_sees_a_gpu_is_told(process):
    evidence = Evidence()
    kernel = process(CUDA_VISIBLE_DEVICES="0")
    evidence.look(STATUS, process(), [kernel])
    assert not evidence.no_context_in_kernels
    assert f"{kernel}: CUDA_VISIBLE_DEVICES is not empty" in evidence.sentences()[1]


def test_two_executors_are_told(process):
    evidence = Evidence()
    evidence.look(STATUS, process(), [])
    other = replace(STATUS, devices=(replace(DEVICE, pid=8),))
    evidence.look(other, 1 << 22, [1 << 22])
    assert not evidence.one_executor
    assert evidence.sentences()[0] == "2 executor processes (7, 8), where one was due."


# -- the command ---------------------------------------------------------------------------------


def test_lessons_that_are_not_there_are_named(tmp_path, capsys):
    assert main(["demo", "--notebooks", str(tmp_path)]) == 1
    assert "has no 02-cnn-digits.ipynb" in capsys.readouterr().err


@pytest.mark.e2e
def test_three_users_train_at_once_on_one_device(tmp_path):
    lessons = write_lessons(tmp_path / "lessons")
    answer = demo("--device", "cpu", "--notebooks", str(lessons))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    results = answer.stdout.partition("Results")[2]
    assert results.count("loss 1.049") == 4  # 4 * 0.8 ** 6
    assert all(name in results for name in (*NAMES, "user1", "user2", "user3"))
    assert "One executor process" in results
    assert "computed for all 4 kernels" in results
    assert "No kernel has a GPU context" in results


@pytest.mark.e2e
@pytest.mark.slow
def test_a_lesson_that_fails_is_an_exit_status_and_a_sentence(tmp_path):
    lessons = write_lessons(tmp_path / "lessons", result="weight @ torch.ones(3, device='cuda')")
    answer = demo("--device", "cpu", "--notebooks", str(lessons))
    assert answer.returncode == 1
    assert "cell 2 of 2 raised RuntimeError" in answer.stdout
    assert "Traceback" in answer.stdout


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demonstration_itself(tmp_path):
    answer = demo("--device", "cpu", timeout_s=880)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    results = answer.stdout.partition("Results")[2]
    assert "test accuracy 9" in results
    assert "validation loss" in results
