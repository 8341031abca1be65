"""The executor reports progress to clients that request it, on every path of a run."""

from client import add_in_place, chain

from jgpu.wire import messages as m

MANY = 40


def told_until(client, work):
    """Return the numbers of the progress reports up to this work."""
    told = []
    while not told or told[-1] < work:
        told.append(client.receive(m.WorksDone).work)
    return told


def test_nobody_is_told_who_did_not_ask(connect):
    client = connect()
    x = client.floats(1, 2, 3, 4)
    for _ in range(MANY):
        client.run(chain(ops=50), [x], live=b"")
    client.sync()
    assert not any(isinstance(each, m.WorksDone) for each in client.inbox)


def test_who_asks_is_told_at_once_and_then_each_so_many_ops(connect):
    client = connect()
    x = client.floats(1, 2, 3, 4)
    client.sync()
    before = client.work
    client.send(m.ReportProgress(100))
    assert client.receive(m.WorksDone).work == before
    for _ in range(MANY):
        client.run(chain(ops=50), [x], live=b"")
    told = told_until(client, before + MANY)
    assert told == [*range(before + 2, before + MANY + 1, 2)]


def test_a_failed_run_counts_as_done(connect):
    client = connect()
    total, other = client.floats(1, 1, 1, 1), client.floats(1)
    client.send(m.ReportProgress(1))
    for _ in range(3):
        client.run(add_in_place(), [total, other])  # it has fewer bytes than the program needs
    assert told_until(client, client.work)[-1] == client.work
    client.sync()
    assert len(client.failures) == 3
