"""The times of works: who was in a lane when, written at the end, and nothing unless asked for."""

from types import SimpleNamespace

from client import Executor, scale

from jgpu.broker.executor.scheduling.trace import Stamped, Trace


def rows_of(file):
    return [tuple(map(int, line.split())) for line in file.read_text().splitlines()]


def test_an_executor_writes_when_each_work_was_ready_began_and_ended(tmp_path):
    file = tmp_path / "trace"
    with Executor("cpu", lanes=1, threads=1, capacity=1 << 26, trace=str(file)) as executor:
        first, second = executor.connect("user1"), executor.connect("user2")
        for client in (first, second):
            number = client.run(scale(), [client.floats(1, 2, 3, 4)], (2.0,))
            assert client.read_floats(number, 4) == (2, 4, 6, 8)
    rows = rows_of(file)
    assert {row[0] for row in rows} == {0}
    assert {row[1] for row in rows} == {first.session, second.session}
    assert all(0 < ready <= began <= ended for _, _, ready, began, ended in rows)
    ends = [0] + [row[4] for row in rows]
    assert all(row[3] >= before for row, before in zip(rows, ends, strict=False))


def job(number):
    session = SimpleNamespace(number=number)
    return SimpleNamespace(session=session, ready_ns=0, measured_s=0.0, over_ns=0, broke=id)


def test_only_the_youngest_works_are_remembered(tmp_path):
    trace = Trace(tmp_path / "trace", works=2)
    for number in range(5):
        work = job(number)
        assert trace.over(0, Stamped(work)) is work
    trace.write()
    assert [row[1] for row in rows_of(tmp_path / "trace")] == [3, 4]


def test_what_the_device_says_of_a_stamped_work_reaches_the_work():
    work = job(1)
    stamped = Stamped(work)
    stamped.measured_s, stamped.over_ns = 0.5, 7
    stamped.broke(ValueError())
    assert (work.measured_s, work.over_ns) == (0.5, 7)
    assert (stamped.measured_s, stamped.over_ns) == (0.5, 7)
    assert stamped.ended > 0


def test_a_trace_that_cannot_be_written_costs_nothing_else(tmp_path, caplog):
    Trace(tmp_path / "nowhere" / "trace").write()
    assert "cannot be written: No such file or directory" in caplog.text
