"""ipykernel's and jupyter_client's own tests, with every kernel started by our provisioner.

Their tests are those of the installed versions, taken from their source archives. Chosen are the
modules that start kernels through a kernel manager; the others meet no provisioner. Left out:

- ipykernel `test_matplotlib_eventloops` wants a display;
- jupyter_client's repetitions over `ipc` where the same test runs over `tcp` (`test_client`,
  `test_kernelmanager`, `test_restarter`): the provisioner is the same, and the time is doubled;
- jupyter_client `test_find_all_specs` by design: it replaces the list of provisioners by its own,
  and asserts that the default one is Jupyter's.
"""

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(420),
]

_BY_DESIGN = "--deselect=tests/test_provisioning.py::TestDiscovery::test_find_all_specs"
_TCP = ("-k", "not ipc")
#: Theirs race a thread's output against the end of its cell: what fails is run once more.
_TWICE = ("--force-flaky", "--max-runs=2", "--min-passes=1")
_ONE_BY_ONE = ("-k", "not ipc and not TestParallel")
_AT_ONCE = ("-k", "not ipc and TestParallel")

#: peer, its modules, further arguments, kernels that its version of today starts
_RUNS = [
    ("ipykernel", ("message_spec", "async", "curve", "eventloop", "kernelapp"), (), 13),
    ("ipykernel", ("kernel",), _TWICE, 10),
    ("ipykernel", ("debugger",), (), 8),
    ("ipykernel", ("subshells",), (), 15),
    ("jupyter_client", ("provisioning", "multikernelmanager", "transport_security"), (), 80),
    ("jupyter_client", ("client",), _TCP, 10),
    ("jupyter_client", ("kernelmanager",), _ONE_BY_ONE, 10),
    ("jupyter_client", ("kernelmanager",), _AT_ONCE, 10),
    ("jupyter_client", ("restarter",), _TCP, 5),
]


@pytest.mark.parametrize(
    ("name", "modules", "arguments", "kernels"),
    _RUNS,
    ids=[f"{name}-{modules[0]}-{i}" for i, (name, modules, _, _) in enumerate(_RUNS)],
)
def test_the_peers_own_tests_pass_on_our_kernels(peers, name, modules, arguments, kernels):
    files = [f"tests/test_{module}.py" for module in modules]
    status, said, provisioned = peers.run(name, *files, _BY_DESIGN, *arguments, timeout_s=400)
    assert status == 0, said[-6000:]
    assert provisioned >= kernels
