"""A notebook in namespaces of its own trains, and is known by its right name."""

import sys

import nbformat
import processes
import pytest
import walls
from lab import Lab
from lessons import losses_alone, trained
from uid_spawner import GROUP

from jgpu.wire.asking import ask
from jgpu.wire.messages import NameUser

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.usefixtures("needs_lab")]

STEPS = 201
NAMESPACES = {
    "user": ("unshare", "--user", "--map-root-user"),
    "process": ("unshare", "--user", "--map-current-user", "--pid", "--fork", "--mount-proc"),
    "both, as root": ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"),
}


@pytest.fixture(scope="module")
def lab(needs_lab):
    """Without a hub, whose part the test plays: it names the uid."""
    with Lab({}, hub=False) as made:
        ask(made.admin, NameUser(20001, "user1", ("class",)))
        yield made


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_notebook_trains_in_namespaces_of_its_own(lab, namespace):
    home = lab.home_of(20001)
    lesson = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(trained(STEPS) + "print([x.hex() for x in losses])")]
    )
    written = home / "lesson.ipynb"
    nbformat.write(lesson, written)
    execute = [*NAMESPACES[namespace], sys.executable, "-m", "jupyter", "execute"]
    execute += ["--output=done.ipynb", str(written)]
    before = {each.name: each.ended_sessions for each in lab.report().users}
    done = processes.run(
        walls.opened(walls.as_user(20001, execute, GROUP), (lab.address.path.parent, "/run/jgpu")),
        capture_output=True,
        text=True,
        cwd=home,
        env=lab.environ
        | {"HOME": str(home), "JUPYTER_DEFAULT_PROVISIONER_NAME": "jgpu-provisioner"},
    )
    assert done.returncode == 0, done.stderr
    (cell,) = nbformat.read(home / "done.ipynb", as_version=4).cells
    assert "".join(each.text for each in cell.outputs) == f"begun\n{losses_alone(STEPS)}\n"
    (user,) = lab.report().users
    assert (user.name, user.groups) == ("user1", ("class",))
    assert user.ended_sessions == before.get("user1", 0) + 1
