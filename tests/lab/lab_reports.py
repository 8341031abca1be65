"""Reports of a broker, as the pure tests of the Jupyter server's side are given them."""

from hypothesis import strategies as st

from jgpu.labserver.state import Moments, state_of
from jgpu.wire.reports.report import (
    SOMEBODY,
    BrokerReport,
    DeviceReport,
    IterationTimes,
    LaneReport,
    QuotaReport,
    Report,
    SessionReport,
    UserReport,
)

GIB, MIB = 1 << 30, 1 << 20


def session(number, user="user1", **fields):
    own = user == "user1"
    fields = {"kernel_id": f"kernel-{number}" if own else "", "pid": 7 if own else None} | fields
    return SessionReport(id=number, user=user, **fields)


def report(*sessions, users=(), device=None, **broker):
    devices = () if device is None else (device,)
    made = BrokerReport(**({"asker": "user1"} | broker))
    return Report(broker=made, devices=devices, sessions=sessions, users=tuple(users))


def state(made, now=100.0, claimed=""):
    moments = Moments()
    moments.take(made, now)
    return state_of(made, moments, claimed)


DEVICE = DeviceReport(
    name="GPU (shared)",
    kind="cuda",
    capacity_bytes=80 * GIB,
    used_bytes=3 * GIB + 5,
    policy="fair",
    lanes=(
        LaneReport(id=0, sessions=(1, 2), running=2),
        LaneReport(id=1, sessions=(3,), running=None),
    ),
)
WAITING = session(
    1,
    state="waiting",
    label="a/lesson.ipynb",
    cell="12",
    cells={"11": 0.25, "12": 3.26789},
    lane=0,
    queue_position=2,
    ahead=2,
    waits_for=(SOMEBODY, "user1"),
    waits_on="turn",
    waits_since=95.04,
    resident_bytes=5 * MIB,
    ephemeral_bytes=7 * MIB,
    spilled_bytes=3 * MIB,
    spilled_resident_bytes=MIB,
    device_seconds=12.3456,
    iterations=40,
    iteration_seconds=IterationTimes(median=0.123456, p95=0.2),
)
USER = UserReport(
    name="user1",
    sessions=2,
    weight=2.0,
    quota=QuotaReport(weight=2.0, memory=4 * GIB, device_seconds=3600.0, period=86400.0),
    used_in_period=1234.5,
    resident_bytes=5 * MIB,
    ephemeral_bytes=7 * MIB,
)

_NAMES = st.sampled_from(["user1", "user2", SOMEBODY])
_SESSIONS = st.builds(
    SessionReport,
    id=st.integers(1, 6),
    user=_NAMES,
    kernel_id=st.sampled_from(["", "k1", "k2"]),
    state=st.sampled_from(["idle", "running", "waiting", "lost"]),
    lane=st.none() | st.integers(0, 1),
    resident_bytes=st.integers(0, 5 * GIB),
    device_seconds=st.floats(0, 1e6),
    waits_since=st.none() | st.floats(0, 1e9),
    queue_position=st.none() | st.integers(1, 9),
    ahead=st.none() | st.integers(0, 9),
    cell=st.sampled_from(["", "1", "2"]),
    cells=st.dictionaries(st.sampled_from(["1", "2", "3"]), st.floats(0, 1e3)),
    pid=st.none() | st.just(7),
)
#: reports of any kind, what no broker says among them
REPORTS = st.builds(
    Report,
    broker=st.builds(
        BrokerReport,
        private=st.booleans(),
        asker=st.sampled_from(["", "user1"]),
        drain=st.sampled_from(["", "draining", "drained"]),
        drain_text=st.text(max_size=5),
    ),
    devices=st.lists(
        st.builds(
            DeviceReport,
            name=st.just("GPU"),
            kind=st.just("cuda"),
            used_bytes=st.integers(0, 5 * GIB),
            lanes=st.lists(
                st.builds(LaneReport, id=st.integers(0, 1), running=st.none() | st.integers(1, 6)),
                max_size=2,
            ).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    sessions=st.lists(_SESSIONS, max_size=6, unique_by=lambda row: row.id).map(tuple),
    users=st.lists(
        st.builds(
            UserReport,
            name=_NAMES,
            used_in_period=st.floats(0, 1e6),
            free_at=st.none() | st.floats(0, 1e9),
        ),
        max_size=2,
    ).map(tuple),
)
