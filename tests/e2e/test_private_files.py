"""Where a private broker writes: its owner's folders, whoever the owner is."""

import os
import signal
import sys
import tempfile
from pathlib import Path

import processes
import pytest

sys.path.append(str(Path(__file__).parents[1] / "device"))

from seat import Broker, until_it_answers

from jgpu.wire.address import Address, user_socket

#: notes what this process and its children write, in Python: files, directories, databases
WATCH = """
import os, sys
notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def note(event, arguments):
    written = event in ("os.mkdir", "os.rename", "os.link", "os.symlink", "sqlite3.connect")
    if written or event == "open" and arguments[2] & WRITES:
        path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
        os.write(notes, f"{os.getcwd()}\\0{os.fsdecode(path)}\\n".encode())
sys.addaudithook(note)
"""

PROGRAM = """
import torch
x = torch.arange(1000.0, device="cuda")
for _ in range(3):
    (x * 2).sum().item()
"""


@pytest.mark.e2e
def test_a_private_broker_writes_below_its_owners_home_alone(home, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    notes = tmp_path / "notes"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JGPU_")}
    environ |= {
        "NOTES": str(notes),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(tmp_path),
        "STATE_DIRECTORY": str(tmp_path / "state of a service"),
    }
    command = [sys.executable, "-m", "jgpu", "broker", "--private", "--device", "cpu"]
    log = home / "log"
    with log.open("wb") as output:
        process = processes.start(command, env=environ, cwd="/", stdout=output, stderr=output)
    with process:
        address = Address(user_socket({"HOME": str(home)}), "user")
        until_it_answers(process, address, log)
        Broker(address, process, log).seat(PROGRAM).check()
        assert process.end(signal.SIGTERM) == 0
    written = {Path(*line.split("\0")) for line in notes.read_text().splitlines()}
    folder = address.path.parent
    assert {folder / "spool", folder / "spool" / "usage.sqlite"} <= written
    torchs_own = Path(tempfile.gettempdir())  # probed at its import, and a folder made
    assert [
        path
        for path in written
        if not path.is_relative_to(home)
        and path.parent != torchs_own
        and path.parts[1] not in ("dev", "proc")
    ] == []
