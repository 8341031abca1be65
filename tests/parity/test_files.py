"""Files: what the device writes native torch reads, and the other way; trainings go on across."""

import pickle
import sys
import zipfile
from pathlib import Path

import processes
import pytest
import torch
from files import flat, told

pytestmark = pytest.mark.e2e
_PROGRAM = Path(__file__).parent / "files.py"


def native(*arguments):
    processes.run([sys.executable, str(_PROGRAM), *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def readings(broker, tmp_path_factory):
    """What each of four readers found: written and read natively ("cpu") or by the device."""
    directory = tmp_path_factory.mktemp("files")
    found = {}
    native("write", "cpu", directory / "cpu.pt")
    broker.seat(_PROGRAM, "write", "cuda", directory / "cuda.pt").check()
    for writer in ("cpu", "cuda"):
        for reader in ("cpu", "cuda"):
            out = directory / f"{writer}-{reader}"
            command = "read", reader, directory / f"{writer}.pt", out
            native(*command) if reader == "cpu" else broker.seat(_PROGRAM, *command).check()
            found[writer, reader] = pickle.loads(out.read_bytes())
    found["file"] = directory / "cuda.pt"
    return found


@pytest.mark.parametrize("pair", [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
@pytest.mark.parametrize("which", range(4), ids=["zip-safe", "zip", "old-safe", "old"])
def test_a_file_holds_the_same_whoever_wrote_and_reads_it(readings, pair, which):
    assert readings[pair][which] == readings["cpu", "cpu"][which]


def test_a_file_of_the_device_says_cuda_as_on_a_gpu(readings):
    with zipfile.ZipFile(readings["file"]) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        text = archive.read(name)
    assert b"cuda:0" in text
    assert b"jgpu" not in text
    assert b"privateuse" not in text.lower()


@pytest.fixture(scope="module")
def trained_natively(tmp_path_factory):
    """What a file holds after three natively trained stretches, each from the file before."""
    directory, path = tmp_path_factory.mktemp("natively"), "-"
    for k in range(3):
        native("train", "cpu", path, directory / f"{k}.pt")
        path = directory / f"{k}.pt"
    return path


@pytest.mark.timeout(400)  # three processes that import torch, after three more
@pytest.mark.parametrize(
    "devices",
    [
        "cpu cuda cpu",
        pytest.param("cuda cpu cuda", marks=pytest.mark.slow),
        pytest.param("cuda cuda cpu", marks=pytest.mark.slow),
    ],
)
def test_a_training_goes_on_from_a_file_wherever_it_was_saved(
    broker, trained_natively, tmp_path, devices
):
    path, expected = "-", trained_natively
    for k, device in enumerate(devices.split()):
        out = tmp_path / f"{k}.pt"
        command = "train", device, path, out
        native(*command) if device == "cpu" else broker.seat(_PROGRAM, *command).check()
        path = out
    got, want = (torch.load(p, map_location="cpu", weights_only=True) for p in (path, expected))
    assert list(map(told, flat(got))) == list(map(told, flat(want)))
