"""An environment with the libraries, and a broker of one lane and one thread."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "e2e"))
sys.path.append(str(Path(__file__).parents[1] / "device"))

import pytest
from behind import environment
from seat import cpu_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A broker that serves from the CPU with one thread, as the native runs have."""
    with cpu_broker(tmp_path_factory.mktemp("libraries-broker")) as running:
        yield running


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """An interpreter that has the libraries."""
    here = Path(__file__).parent
    return environment(tmp_path_factory.mktemp("libraries") / "venv", here / "requirements.txt")


@pytest.fixture(scope="session")
def python_with_more(tmp_path_factory):
    """An interpreter that has the libraries of the long test."""
    here = Path(__file__).parent
    place = tmp_path_factory.mktemp("more-libraries") / "venv"
    return environment(place, here / "requirements-more.txt")
