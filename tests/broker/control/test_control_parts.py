"""The pure parts of the control process, from identity to the status report."""

import os
import sys
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, strategies

from jgpu.broker.control.configuration.settings import BrokerSettings
from jgpu.broker.control.executors.environment import executor_environment
from jgpu.broker.control.executors.gpus import (
    GpuClaim,
    gpu_seems_present,
    gpu_uuid,
    visible_as,
)
from jgpu.broker.control.executors.restarts import Restarts
from jgpu.broker.control.listening.doors import Door, DoorKind
from jgpu.broker.control.listening.identity import (
    Identities,
    Identity,
    Peer,
    clean_text,
    identity_of,
)
from jgpu.broker.control.registry import SessionPhase, SessionRecord, UserUsage
from jgpu.broker.control.reports.report import DeviceView, Viewer, build_report
from jgpu.broker.control.runtimes import check_protocol, check_runtime
from jgpu.errors import ConfigError, VersionMismatch
from jgpu.wire import limits
from jgpu.wire.messages import DeviceFacts, ReportIs, Runtime
from jgpu.wire.reports.report import (
    BrokerReport,
    IterationTimes,
    LaneReport,
    MeasuresReport,
    SessionReport,
    TimesReport,
)

# -- identity --------------------------------------------------------------------------------

NAMES = {0: "root", 5: "jgpu", 1001: "user1", 1002: "user2"}


OWN = os.getuid()


def door(kind, serves=""):
    return Door(None, kind, serves)


USERS, ADMINISTRATORS, OWNER, SERVER = (door(kind) for kind in DoorKind)


def test_nobody_speaks_for_others_at_the_users_door_the_brokers_own_uid_neither():
    known = Identities(name_of=NAMES.get)
    for uid, name in NAMES.items():
        assert known.user_of(Peer(1, uid), USERS, "user2") == name
        assert known.user_of(Peer(1, uid), ADMINISTRATORS, " user2 ") == "user2"
        assert known.user_of(Peer(1, uid), ADMINISTRATORS, "  ") == name


def test_a_private_brokers_owner_speaks_for_others_and_nobody_else():
    known = Identities(name_of=str)
    assert known.user_of(Peer(1, OWN), OWNER, "user2") == "user2"
    assert known.user_of(Peer(1, OWN + 1), OWNER, "user2") == str(OWN + 1)


def test_who_administers_is_the_doors_affair():
    assert [USERS.administers(uid) for uid in (0, OWN, 1001)] == [False] * 3
    assert [ADMINISTRATORS.administers(uid) for uid in (0, OWN, 1001)] == [True] * 3
    assert [SERVER.administers(uid) for uid in (0, OWN, 1001)] == [False] * 3
    assert [OWNER.administers(uid) for uid in (0, OWN, OWN + 1)] == [True, True, False]


def test_a_uid_is_looked_up_once():
    asked = []
    known = Identities(name_of=lambda uid: asked.append(uid) or "user1")
    assert not known.known(1001)
    assert [known.name(1001), known.name(1001)] == ["user1", "user1"]
    assert asked == [1001]
    assert known.known(1001)


def test_names_are_remembered_of_those_who_connected_last():
    known = Identities(name_of=str)
    for uid in range(70000):
        known.name(uid)
    assert [known.known(uid) for uid in (0, 60000, 69999)] == [False, False, True]


def test_limits_count_by_uid_unless_the_door_or_whoever_may_speak_for_others_says_more():
    known, peer = Identities(name_of=str), Peer(1, 1001)
    assert identity_of(peer, USERS) == Identity("uid", "1001")
    assert identity_of(peer, door(DoorKind.USERS, "server1")) == Identity("socket", "server1")
    for where, whose in ((USERS, Identity("uid", "1001")), (ADMINISTRATORS, Identity("user", "u"))):
        assert identity_of(peer, where, known.spoken_for(peer, where, "u")) == whose
        assert identity_of(peer, where, known.spoken_for(peer, where, " ")).kind == "uid"
    assert str(Identity("uid", "1001")) == "uid 1001"


@given(strategies.text(), strategies.integers(0, 50))
def test_cleaned_text_is_one_printable_line(text, longest):
    cleaned = clean_text(text, longest)
    assert len(cleaned) == min(len(text), longest)
    assert cleaned.isprintable()


# -- versions --------------------------------------------------------------------------------

SERVED = Runtime("3.11", "2.13.0+cu128", "aa")


@pytest.mark.parametrize("torch", ["2.13.0", "2.13.0+cpu", "2.13.1", "2.13.0a0+git1"])
def test_builds_of_one_release_fit(torch):
    check_runtime(Runtime("3.12", torch, "aa"), SERVED)
    check_runtime(Runtime("3.12", torch, ""), SERVED)


def test_other_releases_and_other_ops_do_not_fit():
    with pytest.raises(VersionMismatch, match=r"torch 2\.12\.0, .* torch 2\.13\.0\+cu128"):
        check_runtime(Runtime("3.11", "2.12.0", "aa"), SERVED)
    with pytest.raises(VersionMismatch, match="not those of the broker"):
        check_runtime(Runtime("3.11", "2.13.0", "bb"), SERVED)


def test_what_is_not_known_is_not_compared():
    check_runtime(Runtime("3.11", "1.0", "bb"), Runtime("", "", ""))


@pytest.mark.parametrize(("protocol", "whose"), [(0, "notebook's"), (999, "broker's")])
def test_another_protocol_says_what_to_upgrade(protocol, whose):
    with pytest.raises(VersionMismatch, match=f"Upgrade jgpu in the {whose} environment"):
        check_protocol(protocol)


@pytest.mark.parametrize("protocol", [limits.PROTOCOL, limits.PROTOCOL - 1])
def test_clients_of_this_protocol_and_of_the_one_before_are_served(protocol):
    check_protocol(protocol)


# -- restarts --------------------------------------------------------------------------------


def test_restarts_are_at_once_then_slower_then_not_for_a_while():
    restarts = Restarts(limit=4, window_s=60.0)
    assert [restarts.ended(t) for t in (0.0, 1.0, 2.0, 3.0, 4.0)] == [0.0, 0.25, 0.5, 1.0, None]
    assert restarts.ended(5.0) == 0.0
    assert restarts.count == 6


def test_ends_that_a_user_is_to_blame_for_are_made_good_at_once_and_never_use_up_the_limit():
    restarts = Restarts(limit=1, window_s=60.0)
    assert [restarts.ended(t, blamed=True) for t in range(20)] == [0.0] * 20
    assert [restarts.ended(t) for t in (20.0, 21.0)] == [0.0, None]
    assert restarts.count == 22


def test_ends_long_ago_do_not_count():
    restarts = Restarts(limit=1, window_s=60.0)
    assert [restarts.ended(t) for t in (0.0, 100.0, 200.0)] == [0.0, 0.0, 0.0]


# -- environment and GPUs --------------------------------------------------------------------


#: read by torch, or by a library below it
LIBRARIES = """
    ATEN_CPU_CAPABILITY CUBLASLT_WORKSPACE_SIZE CUBLAS_WORKSPACE_CONFIG CUBLAS_LOGINFO_DBG
    CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDNN_LOGLEVEL_DBG DISABLE_ADDMM_CUDA_LT
    MKL_CBWR MKL_NUM_THREADS NVIDIA_TF32_OVERRIDE ONEDNN_MAX_CPU_ISA PYTORCH_CUDA_ALLOC_CONF
    PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_TUNABLEOP_ENABLED TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
    TORCH_BLAS_PREFER_CUBLASLT TORCH_CUDNN_V8_API_DISABLED TORCH_LINALG_PREFER_CUSOLVER
    """.split()  # noqa: SIM905 - a name a line would fill a page


def test_nothing_that_changes_results_or_makes_it_a_client_reaches_an_executor():
    shell = {"OMP_NUM_THREADS": "1", "JGPU_TICKET": "t", "HOME": "/h", "JGPU_ADDRESS": "unix:/x"}
    shell |= dict.fromkeys(LIBRARIES, "1")
    made = executor_environment(shell, "cpu", {"EXTRA": "1"})
    assert made == {
        "HOME": "/h",
        "EXTRA": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }


def test_a_cuda_executor_gets_its_allocator_settings_and_the_administrator_wins():
    made = executor_environment({"CUDA_VISIBLE_DEVICES": "1"}, "cuda", {"PYTORCH_ALLOC_CONF": "x"})
    assert made["CUDA_VISIBLE_DEVICES"] == "1"
    assert made["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert made["PYTORCH_ALLOC_CONF"] == "x"


def test_a_gpu_is_claimed_once_and_the_second_learns_by_whom():
    name = f"GPU-test-{os.getpid()}"
    claim = GpuClaim(name)
    with pytest.raises(
        ConfigError, match=rf"{name} is taken by another broker \(pid {os.getpid()}"
    ):
        GpuClaim(name)
    claim.release()
    GpuClaim(name).release()


def nvml():
    """The library, with two GPUs, of which the second is parted into places 0 and 2."""

    class Missing(Exception):
        pass

    def parted(handle):
        if handle == "a":
            raise Missing
        return 1, 1

    def part(handle, place):
        if place == 1:
            raise Missing
        return f"{handle}{place}"

    return SimpleNamespace(
        NVMLError=Missing,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex="ab".__getitem__,
        nvmlDeviceGetMigMode=parted,
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 3,
        nvmlDeviceGetMigDeviceHandleByIndex=part,
        nvmlDeviceGetUUID=lambda handle: f"{'MIG' if len(handle) > 1 else 'GPU'}-{handle}",
    )


def test_an_executor_sees_its_gpu_alone_by_a_name_that_no_order_changes(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert [visible_as(k, {}) for k in range(3)] == ["GPU-a", "MIG-b0", "MIG-b2"]
    assert visible_as(0, {"CUDA_VISIBLE_DEVICES": "1,0"}) == "MIG-b0"
    assert visible_as(1, {"CUDA_VISIBLE_DEVICES": "GPU-x,MIG-y"}) == "MIG-y"
    made = executor_environment({"CUDA_VISIBLE_DEVICES": "1,0"}, "cuda", {}, "GPU-a")
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert executor_environment({}, "cpu", {}, "")["CUDA_VISIBLE_DEVICES"] == ""


def test_where_nobody_tells_names_a_gpu_is_seen_by_its_number(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert visible_as(3, {}) == "3"
    assert visible_as(1, {"CUDA_VISIBLE_DEVICES": "4,2"}) == "2"


def test_a_gpu_is_named_as_cuda_will_count():
    assert gpu_uuid(1, {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}) == "GPU-b"
    with pytest.raises(ConfigError, match="GPU 1 is not among"):
        gpu_uuid(1, {"CUDA_VISIBLE_DEVICES": "0,-1,2"})
    assert not gpu_seems_present({"CUDA_VISIBLE_DEVICES": ""})


# -- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"device": "tpu"},
        {"max_sessions": 0},
        {"max_user_connections": 0},
        {"start_timeout_s": 0},
        {"executor_command": ()},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, tmp_path):
    with pytest.raises(ConfigError):
        BrokerSettings(socket=tmp_path / "s", **wrong)


# -- the report ------------------------------------------------------------------------------

FACTS = DeviceFacts("cpu", "Device (shared)", 4000, 2)
ROW = SessionReport(
    id=1,
    user="user1",
    state="waiting",
    lane=0,
    resident_bytes=10,
    ephemeral_bytes=20,
    device_seconds=1.5,
    iterations=3,
    iteration_seconds=IterationTimes(median=0.4, p95=0.6),
    queue_position=2,
    ahead=1,
    waits_for=("user2",),
    waits_on="turn",
    cell="cell 4",
    cells={"cell 3": 0.5},
)
LANE = LaneReport(id=0, capacity_bytes=2000, sessions=(1, 2), running=2)
MEASURES = MeasuresReport(spills=3, waits=TimesReport(bounds=(1.0,), counts=(2, 1), seconds=4.5))
REPORT = ReportIs(1, (LANE,), (ROW,), 30, "fair", 5, measures=MEASURES)


def session(number, user, uid, state=SessionPhase.ADOPTED, adoptions=1):
    peer, whose = Peer(100 + number, uid), Identity("uid", str(uid))
    return SessionRecord(
        number, user, peer, "t", "k", "a.ipynb", 5.0, whose, state=state, adoptions=adoptions
    )


def report(viewer, device_state="ready", measured=REPORT):
    view = DeviceView("cpu", device_state, "", FACTS, measured, "fair", 0, 1, 99)
    sessions = [session(1, "user1", 1001), session(2, "user2", 1002)]
    usage = {"user1": UserUsage(2, 10.0), "user3": UserUsage(1, 1.0)}
    broker = BrokerReport(pid=7)
    made = build_report(broker, [view], sessions, usage, viewer, now=8.0, epoch=100.0)
    return msgspec.json.decode(msgspec.json.encode(made))


def test_an_administrator_sees_everything():
    made = report(Viewer("root", administrator=True))
    assert made["devices"] == [
        {
            "name": "Device (shared)",
            "kind": "cpu",
            "capacity_bytes": 4000,
            "policy": "fair",
            "lanes": [
                {
                    "id": 0,
                    "capacity_bytes": 2000,
                    "sessions": [1, 2],
                    "running": 2,
                    "state": "open",
                    "running_seconds": 0.0,
                    "running_since": 0.0,
                    "op": "",
                }
            ],
            "state": "ready",
            "note": "",
            "used_bytes": 30,
            "threads": 2,
            "definitions": 5,
            "restarts": 1,
            "pid": 99,
            "last_end": None,
            "memory": {"resident_bytes": 10, "ephemeral_bytes": 20, "spilled_bytes": 0},
            "measures": msgspec.json.decode(msgspec.json.encode(MEASURES)),
        }
    ]
    assert made["sessions"][0] == {
        "id": 1,
        "user": "user1",
        "kernel_id": "k",
        "state": "waiting",
        "lane": 0,
        "resident_bytes": 10,
        "ephemeral_bytes": 20,
        "spilled_bytes": 0,
        "device_seconds": 1.5,
        "iterations": 3,
        "iteration_seconds": {"median": 0.4, "p95": 0.6},
        "queue_position": 2,
        "ahead": 1,
        "waits_for": ["user2"],
        "waits_on": "turn",
        "waits_since": None,
        "spilled_resident_bytes": 0,
        "label": "a.ipynb",
        "cell": "cell 4",
        "cells": {},
        "pid": 101,
        "age_seconds": 3.0,
        "since": 105.0,
    }
    assert made["sessions"][1]["state"] == "starting"
    users = {row["name"]: (row["sessions"], row["device_seconds"]) for row in made["users"]}
    assert users == {"user1": (1, 11.5), "user2": (1, 0.0), "user3": (0, 1.0)}


def test_others_see_themselves_and_that_there_are_others():
    made = report(Viewer("user1", administrator=False))
    own, other = made["sessions"]
    assert (own["user"], own["label"], own["pid"]) == ("user1", "a.ipynb", 101)
    assert (own["waits_for"], own["ahead"]) == (["another user"], 1)
    (theirs, _) = report(Viewer("user2", administrator=False))["sessions"]
    assert (theirs["queue_position"], theirs["waits_on"], theirs["ahead"]) == (2, "", None)
    assert (own["cells"], other["cells"]) == ({"cell 3": 0.5}, {})
    assert (other["user"], other["label"], other["kernel_id"], other["pid"]) == (
        "another user",
        "",
        "",
        None,
    )
    assert [row["name"] for row in made["users"]] == ["user1"]
    assert made["devices"][0]["pid"] is None
    assert made["devices"][0]["measures"]["spills"] == 0


def test_whoever_asks_is_named_and_told_where_they_stand_before_their_first_session():
    made = report(Viewer("user9", administrator=False))
    assert made["broker"]["asker"] == "user9"
    assert [(row["name"], row["sessions"]) for row in made["users"]] == [("user9", 0)]


def test_an_administrators_account_is_no_user():
    made = report(Viewer("root", administrator=True))
    assert made["broker"]["asker"] == "root"
    assert "root" not in [row["name"] for row in made["users"]]


def test_sessions_between_two_executors_are_lost():
    made = report(Viewer("root", administrator=True), "restarting", None)
    assert [row["state"] for row in made["sessions"]] == ["lost", "lost"]
