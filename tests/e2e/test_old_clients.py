"""Clients of earlier protocols at this broker: those of the one before train, others are told."""

import contextlib
import json
from pathlib import Path

import msgspec
import numpy
import pytest
from host import Host
from recorded_client import play

from jgpu.errors import VersionMismatch
from jgpu.wire import limits
from jgpu.wire.runtime import runtime_of

pytestmark = pytest.mark.e2e

GOLDEN = Path(__file__).parents[1] / "wire" / "golden"
BEFORE = limits.PROTOCOL - 1


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    with contextlib.closing(Host(tmp_path_factory.mktemp("host"), "cpu")) as made:
        yield made.start()


def runtime():
    import torch

    return runtime_of(torch)


def recorded(version):
    return json.loads((GOLDEN / str(version) / "client.json").read_text())


def test_a_client_of_the_version_before_connects_and_trains(host):
    old = recorded(BEFORE)
    played = play(host.address.path, old, runtime())
    assert played.messages[0][0] == "Welcome"
    *_, weights = played.named("Downloaded")
    found = numpy.frombuffer(weights[2], dtype=numpy.float32).reshape(3, 4)
    assert numpy.allclose(found, old["weights"], rtol=1e-5, atol=1e-6)


def test_a_client_of_the_version_before_gets_only_what_it_knows(host):
    schema = json.loads((GOLDEN / str(BEFORE) / "schema.json").read_text())
    known = schema["replies"] | schema["from the executor"]
    for name, *fields in play(host.address.path, recorded(BEFORE), runtime()).messages:
        assert len(fields) == len(known[name])


def test_a_client_of_a_version_that_is_served_no_more_is_told_what_to_do(host):
    old = recorded(BEFORE)
    hello = msgspec.msgpack.decode(bytes.fromhex(old["sent"][0]))
    hello[1] = limits.OLDEST_PROTOCOL - 1
    old["sent"][0] = msgspec.msgpack.encode(hello).hex()
    (refused,) = play(host.address.path, old, runtime()).messages
    assert refused[:2] == ["Refused", VersionMismatch.reason]
    assert "Upgrade jgpu in the notebook's environment" in refused[2]
