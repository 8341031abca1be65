"""A download is answered when the last work that writes its buffer is over, not all others."""

from client import add_in_place, matmul, scale

from jgpu.wire import messages as m

SLOW = matmul(512, ops=20)


def order_of_replies(client, *requests):
    """The requests in the order in which they are answered."""
    order = []
    while len(order) < len(requests):
        message = client.receive((m.Downloaded, m.Synced, m.Failed))
        if getattr(message, "request", None) in requests:
            order.append(message.request)
    return order


def test_a_download_passes_work_that_does_not_write_its_buffer(connect):
    client = connect()
    source = client.upload_arena(bytes(4 * 512 * 512))
    number = client.run(scale(), [client.floats(1, 2, 3, 4)], (2.0,))
    for _ in range(40):
        client.run(SLOW, [source], live=b"")
    synced = client.next_request()
    client.send(m.Sync(client.next_work(), synced))
    asked = client.ask(number, 16)
    assert order_of_replies(client, asked, synced) == [asked, synced]


def test_a_download_waits_for_the_last_work_that_writes_its_buffer(connect):
    client = connect()
    source = client.upload_arena(bytes(4 * 512 * 512))
    total, one = client.floats(0, 0, 0, 0), client.floats(1, 1, 1, 1)
    for _ in range(5):
        client.run(SLOW, [source], live=b"")
        client.run(add_in_place(), [total, one])
    assert client.read_floats(total, 4) == (5, 5, 5, 5)
    assert client.read_floats(one, 4) == (1, 1, 1, 1)


def test_a_download_of_what_an_undefined_program_may_write_waits(connect):
    client = connect()
    total, one = client.floats(1, 1, 1, 1), client.floats(1, 1, 1, 1)
    client.run(add_in_place(), [total, one])  # defined and run in one burst
    assert client.read_floats(total, 4) == (2, 2, 2, 2)
