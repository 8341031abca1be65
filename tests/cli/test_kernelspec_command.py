"""`jgpu kernelspec`: what it says, where it writes."""

import json
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from jgpu.cli import main


def test_install_list_and_remove_for_the_user(capsys, home, monkeypatch):
    monkeypatch.setenv("JGPU_ACCELERATOR", "0")  # so that nothing is said of it
    assert main(["kernelspec", "install", "--user"]) == 0
    directory = home / "data" / "kernels" / "jgpu"
    assert capsys.readouterr().out == f"Installed the kernel 'jgpu' in {directory}.\n"
    assert main(["kernelspec", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == {"jgpu": str(directory)}
    assert main(["kernelspec", "list"]) == 0
    assert str(directory) in capsys.readouterr().out
    assert main(["kernelspec", "remove", "--user"]) == 0
    assert main(["kernelspec", "remove", "--user"]) == 1
    assert "There is no kernel 'jgpu' of jgpu" in capsys.readouterr().err


def test_a_prefix_a_name_and_a_display_name(capsys, tmp_path):
    words = ["--prefix", str(tmp_path / "p"), "--name", "mine", "--display-name", "Mine"]
    assert main(["kernelspec", "install", *words]) == 0
    text = (tmp_path / "p/share/jupyter/kernels/mine/kernel.json").read_text()
    assert json.loads(text)["display_name"] == "Mine"
    assert json.loads(text)["argv"][0] == sys.executable
    assert "needs jgpu, too" in capsys.readouterr().out


def test_this_interpreter_named_by_its_path_is_this_environment(capsys):
    assert main(["kernelspec", "install", "--user", "--python", sys.executable]) == 0
    assert KernelSpecManager().get_kernel_spec("jgpu").argv[0] == sys.executable


def test_what_is_no_interpreter_installs_nothing(capsys, home):
    assert main(["kernelspec", "install", "--user", "--python", "/no/such"]) == 1
    assert "There is no interpreter '/no/such'." in capsys.readouterr().err
    assert not (home / "data").exists()


def test_every_kernel_is_routed_and_no_more(capsys, home):
    assert main(["kernelspec", "install", "--user", "--all-kernels"]) == 0
    file = home / "config" / "jupyter_config.json"
    said = capsys.readouterr().out
    assert str(file) in said
    assert "JUPYTER_DEFAULT_PROVISIONER_NAME=jgpu-provisioner" in said
    assert main(["kernelspec", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["routed_by"] == [str(file)]
    assert main(["kernelspec", "remove", "--user", "--all-kernels"]) == 0
    assert not file.exists()
    assert main(["kernelspec", "remove", "--user", "--all-kernels"]) == 0
    assert "Nothing to undo" in capsys.readouterr().out


def test_places_exclude_each_other():
    with pytest.raises(SystemExit):
        main(["kernelspec", "install", "--user", "--prefix", str(Path("/x"))])
