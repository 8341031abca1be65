"""Where the accelerator is looked for, and that the device is the same without it."""

import json
import sysconfig

import pytest
import torch

from jgpu.accelerator import building, loading, place
from jgpu.accelerator.place import SWITCH
from jgpu.kernelprovider.environment import furnish, outer_environment

load = loading.load.__wrapped__  # without what this process has loaded


def test_its_name_says_torch_python_and_source(built, source, monkeypatch):
    file = place.library()
    torch_version, soabi = torch.__version__, sysconfig.get_config_var("SOABI")
    assert file.parent == built
    assert file.name.startswith(f"torch-{torch_version}.{soabi}.")
    with monkeypatch.context() as another:
        another.setattr(place.metadata, "version", lambda name: "2.99.0")
        assert place.library().name == file.name.replace(torch_version, "2.99.0")
    with monkeypatch.context() as another:
        another.setattr(place.sysconfig, "get_config_var", lambda name: "cpython-399")
        assert place.library().name == file.name.replace(soabi, "cpython-399")
    (source / "accelerator.cpp").write_text("// changed\n")
    assert place.library().name[: -len("0123456789ab.so")] == file.name[: -len("0123456789ab.so")]
    assert place.library() != file


@pytest.mark.usefixtures("source", "real_compiler")
def test_what_was_built_is_loaded_unless_it_is_switched_off(monkeypatch):
    assert load() is None
    file = building.build()
    assert load().__file__ == str(file)
    monkeypatch.setenv(SWITCH, "0")
    assert load() is None


def test_what_is_no_library_leaves_the_plain_form(built):
    built.mkdir()
    place.library().write_text("nothing")
    assert load() is None


PROGRAM = """
import json, torch
from jgpu.accelerator import loading
from jgpu.device.recording.cuts import taking

torch.manual_seed(3)
layers = torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 1)
net = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
x = torch.randn(24, 5).cuda()
told = []
for step in range(6):
    rows = x[4 * (step % 3) :][:8].t().contiguous().view(5, 8).t()
    loss = ((net(rows * 2.0 + 1) - rows[:, :1].exp()) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    told.append(loss.item().hex())
told += [each.item().hex() for name, p in net.named_parameters() for each in p.sum((), True)[None]]
is_plain = taking.take is taking.take_in_python
assert is_plain is (loading.load() is None)
print(json.dumps([not is_plain, told]))
"""


def _said(broker, environment=None):
    return json.loads(broker.seat(PROGRAM, environment=environment).check().out)


@pytest.mark.e2e
def test_a_notebook_reads_the_same_numbers_without(broker):
    is_used, numbers = _said(broker, {SWITCH: "1"})
    assert is_used is place.library().exists()
    assert len(numbers) == 12
    assert _said(broker, {SWITCH: "0"}) == [False, numbers]


@pytest.mark.e2e
def test_what_tests_start_is_without_it_where_they_are(broker, monkeypatch):
    """`make test-plain` sets the variable for the whole run."""
    monkeypatch.setenv(SWITCH, "0")
    assert _said(broker)[0] is False
    monkeypatch.delenv(SWITCH)
    assert _said(broker)[0] is place.library().exists()


def test_a_seat_leaves_the_switch_as_it_is():
    environ = {SWITCH: "0"}
    furnish(environ, where=None, ticket="a")
    assert environ[SWITCH] == "0"
    assert outer_environment(environ)[SWITCH] == "0"


def test_beside_a_torch_that_nobody_tried_the_plain_form_is_used(monkeypatch):
    with monkeypatch.context() as untried:
        untried.setattr(loading.metadata, "version", lambda name: "99.0.1")
        assert loading.load.__wrapped__() is None
