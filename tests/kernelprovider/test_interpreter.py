"""Other interpreters' environments: what they have, and one command that adds what is missing."""

import sys
from pathlib import Path

import processes
import pytest

import jgpu
from jgpu.errors import ConfigError
from jgpu.kernelprovider.interpreter import examine, install_client, requirement


def test_this_interpreter_has_what_it_needs():
    found = examine(sys.executable)
    assert found.prefix == Path(sys.prefix)
    assert found.python == sys.version_info[:2]
    assert found.has["jgpu"] == jgpu.__version__
    assert found.missing == []


def test_an_environment_is_known_by_its_directory_and_its_lack(tmp_path):
    processes.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    found = examine(str(tmp_path / "v"))
    assert found.executable == str(tmp_path / "v" / "bin" / "python")
    assert found.prefix == tmp_path / "v"
    assert found.missing == ["jgpu", "msgspec", "ipykernel"]


def test_what_is_no_interpreter_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="no interpreter '/no/such'"):
        examine("/no/such")
    with pytest.raises(ConfigError, match="does not run as a Python"):
        examine("/bin/true")
    fake = tmp_path / "python"
    answer = '{"python": [3, 9], "prefix": "/", "platform": "linux", "has": {}}'
    fake.write_text(f"#!/bin/sh\necho '{answer}'\n")
    fake.chmod(0o755)
    with pytest.raises(ConfigError, match=r"is Python 3\.9; jgpu needs 3\.11"):
        examine(str(fake))
    fake.write_text(f"#!/bin/sh\necho '{answer.replace('9', '12').replace('linux', 'darwin')}'\n")
    with pytest.raises(ConfigError, match="runs on Linux only"):
        examine(str(fake))


def test_pip_is_given_this_very_package():
    assert requirement() == f"jgpu=={jgpu.__version__}" or Path(requirement()).exists()


@pytest.mark.slow
@pytest.mark.e2e
def test_the_client_is_installed_into_an_environment_without_pip(tmp_path, package_index):
    processes.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    after = install_client(examine(str(tmp_path / "v")))
    assert after.has["jgpu"] == jgpu.__version__
    assert after.missing == []
    assert after.has["torch"] == ""
    (resources,) = (tmp_path / "v").glob("lib/python*/site-packages/jgpu/kernelprovider/resources")
    names = {str(file.relative_to(resources)) for file in resources.rglob("*.*")}
    assert {"server/startup.py", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"} <= names
