"""The frame of `jgpu`: finding subcommands, help, errors as sentences."""

import sys

import processes
import pytest

import jgpu
from jgpu.cli import commands, main


def test_every_module_is_a_command_with_one_line_of_help():
    found = commands()
    assert {"kernelspec", "run"} <= set(found)
    assert all(found.values())


@pytest.mark.parametrize("name", commands())
def test_every_command_that_help_lists_says_how_it_is_used(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out


def test_help_lists_the_commands_without_importing_any(capsys):
    code = (
        "import sys; from jgpu.cli import main; main(['--help']); "
        "print(sorted(name for name in sys.modules if name.startswith('jgpu.')))"
    )
    command = [sys.executable, "-c", code]
    answer = processes.run(command, capture_output=True, text=True, check=True)
    assert "kernelspec" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "['jgpu.cli', 'jgpu.errors']"


def test_no_words_and_unknown_words_are_usage_errors(capsys):
    assert main([]) == 2
    assert main(["no-such"]) == 2
    assert "there is no command 'no-such'" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jgpu {jgpu.__version__}\n"


def test_an_error_is_one_sentence_and_an_advice(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JGPU_ADDRESS", f"unix:{tmp_path}/none")
    assert main(["run", "--", "true"]) == 1
    assert capsys.readouterr().err == (
        f"jgpu run: There is no broker at unix:{tmp_path}/none. JGPU_ADDRESS names it.\n"
        "Run `jgpu doctor` in a terminal on this host.\n"
    )


def test_the_package_can_be_run_as_a_module():
    answer = processes.run([sys.executable, "-m", "jgpu", "--version"], capture_output=True)
    assert answer.stdout == f"jgpu {jgpu.__version__}\n".encode()


def test_an_output_that_nobody_reads_is_no_error():
    command = f"{sys.executable} -m jgpu --help | true; echo ${{PIPESTATUS[0]}}"
    answer = processes.run(["/bin/bash", "-c", command], capture_output=True, text=True)
    assert (answer.stdout, answer.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--every", "0"), "count from 1"),
        (("--workers", "0"), "count from 1"),
        (("--update", "--only", "add"), "takes a whole run"),
    ],
)
def test_a_measurement_that_makes_no_sense_is_a_sentence(arguments, said, capsys):
    assert main(["bench", "fidelity", *arguments]) == 1
    assert said in capsys.readouterr().err
