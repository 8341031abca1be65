"""`jgpu accelerate`, and what the doctor and `jgpu kernelspec install` say where it was not run."""

import json
import sys
from importlib import metadata

import pytest

import jgpu
from jgpu.accelerator import place
from jgpu.accelerator.place import SWITCH
from jgpu.cli import _accelerator, accelerate, doctor, main
from jgpu.errors import HostError


@pytest.fixture
def built(tmp_path, monkeypatch):
    """Where libraries are put, empty yet."""
    path = tmp_path / "built"
    path.mkdir()
    monkeypatch.setattr(place, "_BUILT", path)
    monkeypatch.delenv(SWITCH, raising=False)
    return path


@pytest.fixture
def interpreter(tmp_path):
    """Another Python: what it has, and what it does when it is asked for the accelerator."""

    def make(has, *, module="false", look="false"):
        answer = {
            "python": [3, 11], "prefix": str(tmp_path), "platform": "linux",
            "has": dict.fromkeys(["ipykernel", "jgpu", "msgspec", "pip", "torch"], "") | has,
        }  # fmt: skip
        file = tmp_path / "python"
        file.write_text(
            f"#!/bin/sh\ncase \"$1 $2\" in '-I -c') echo '{json.dumps(answer)}';; "
            f"'-P -m') {module};; '-P -c') {look};; esac\n"
        )
        file.chmod(0o755)
        return str(file)

    return make


HAS = {"ipykernel": "7", "jgpu": jgpu.__version__, "msgspec": "1", "torch": "2.13.0"}


# -- the command -----------------------------------------------------------------------------


@pytest.mark.usefixtures("built")
def test_it_is_built_for_this_interpreter(monkeypatch, capsys):
    monkeypatch.setattr(accelerate, "build", lambda: place.SOURCE / "x.so")
    assert main(["accelerate"]) == 0
    building = "Building the accelerator (half a minute) ...\n"
    made = place.SOURCE / "x.so"
    said = f"The accelerator is {made}; kernels and brokers use it from their next start.\n"
    assert capsys.readouterr().out == building + said
    place.library().touch()
    assert main(["accelerate"]) == 0
    assert capsys.readouterr().out == said


def test_where_it_cannot_be_built_that_is_a_sentence(monkeypatch, capsys):
    def build():
        raise HostError("There is no C++ compiler here.")

    monkeypatch.setattr(accelerate, "build", build)
    assert main(["accelerate"]) == 1
    assert capsys.readouterr().err == "jgpu accelerate: There is no C++ compiler here.\n"


def test_it_is_built_by_another_interpreter(interpreter, capsys):
    python = interpreter(HAS, module='test "$3" = jgpu.accelerator && echo /x/y.so')
    assert main(["accelerate", "--python", python]) == 0
    said = "The accelerator is /x/y.so; kernels and brokers use it from their next start.\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("has", "module", "said"),
    [
        (HAS, "echo There is none. >&2; exit 1", "There is none."),
        (HAS, "exit 3", "status 3"),
        (HAS | {"jgpu": ""}, "false", "has no jgpu. `jgpu kernelspec install --python "),
        (
            HAS,
            "echo /p: No module named jgpu.accelerator >&2; exit 1",
            "is older than the accelerator. Upgrade it there.",
        ),
    ],
)
def test_what_another_interpreter_lacks_is_a_sentence(interpreter, capsys, has, module, said):
    assert main(["accelerate", "--python", interpreter(has, module=module)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jgpu accelerate: ")
    assert said in err
    assert err.count("\n") == 1


def test_what_is_no_interpreter_is_a_sentence(capsys):
    assert main(["accelerate", "--python", "/no/such"]) == 1
    assert "There is no interpreter '/no/such'." in capsys.readouterr().err


# -- the doctor ------------------------------------------------------------------------------


def finding():
    (found,) = doctor.check_accelerator()
    assert found.subject == "accelerator"
    return found.state, found.text, found.advice


@pytest.mark.usefixtures("built")
def test_the_doctor_notes_that_it_was_not_built():
    state, text, advice = finding()
    assert state == "note"
    assert text == "It was not built for this Python and torch; small steps take longer."
    assert "`jgpu accelerate`" in advice


def test_the_doctor_names_what_was_built_for_others(built):
    (built / "torch-2.12.0.cpython-311.0123456789ab.so").touch()
    state, text, advice = finding()
    assert state == "note"
    assert "built for another Python, torch or jgpu (torch-2.12.0.cpython-311.0123456789ab)" in text
    assert "`jgpu accelerate`" in advice


@pytest.mark.usefixtures("built")
def test_the_doctor_notes_that_it_is_switched_off(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    state, text, advice = finding()
    assert state == "note"
    assert text.startswith("JGPU_ACCELERATOR is 0")
    assert "Unset it" in advice


@pytest.mark.usefixtures("built")
def test_the_doctor_finds_one_that_does_not_load():
    place.library().write_text("nothing")
    state, text, advice = finding()
    assert state == "problem"
    assert text.startswith(f"{place.library()} does not load (ImportError: ")
    assert "`jgpu accelerate`" in advice


@pytest.mark.usefixtures("built")
def test_the_doctor_says_where_it_is(monkeypatch):
    place.library().touch()
    monkeypatch.setattr(_accelerator, "fault_of", lambda file: "")
    assert finding() == (
        "ok",
        f"Kernels and brokers of this environment use {place.library()}.",
        "",
    )


def test_the_doctor_speaks_of_torch_alone_where_there_is_none(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert list(doctor.check_accelerator()) == []


def test_the_doctor_looks_at_it():
    assert doctor.check_accelerator in doctor.CHECKS


# -- the kernel ------------------------------------------------------------------------------


def noted(capsys, *words):
    assert main(["kernelspec", "install", "--user", *words]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("Installed the kernel")
    return others


@pytest.mark.usefixtures("built")
def test_a_kernel_without_it_is_installed_with_a_note_of_one_line(capsys):
    said = "Note: `jgpu accelerate` would make small steps cheaper (half a minute, once)."
    assert noted(capsys) == [said]
    place.library().touch()
    assert noted(capsys) == []


@pytest.mark.usefixtures("built")
def test_who_switched_it_off_is_not_told(monkeypatch, capsys):
    monkeypatch.setenv(SWITCH, "0")
    assert noted(capsys) == []


@pytest.mark.parametrize(
    ("look", "missing"), [("echo False", True), ("echo True", False), ("false", False)]
)
@pytest.mark.usefixtures("built")
def test_another_interpreter_is_asked_and_may_not_know(interpreter, capsys, look, missing):
    python = interpreter(HAS, look=look)
    assert python != sys.executable
    said = f"Note: `jgpu accelerate --python {python}` would make small steps cheaper"
    told = [line.partition(" (")[0] for line in noted(capsys, "--python", python)]
    assert told == [said] * missing
