"""A door that closes while its socket is being made again stays closed."""

import asyncio
import socket

from jgpu.broker.control.listening.doorkeeper import Doorkeeper
from jgpu.broker.control.listening.doors import Door, DoorKind
from jgpu.broker.control.listening.listener import Listener


def test_a_door_that_closes_while_it_is_renewed_is_not_opened_again(tmp_path):
    async def scene():
        door = Door(Listener(tmp_path / "s"), DoorKind.SERVER, "server1", "user1")
        keeper = Doorkeeper((), lambda connection, door: connection.close())
        keeper.open(door)
        await asyncio.sleep(0)
        door.listener.path.unlink()
        renewing = asyncio.create_task(keeper._renew(door))
        await asyncio.sleep(0)  # it waits for the one who waits at the door
        await keeper.close(door)
        await renewing
        assert keeper.doors == ()

    asyncio.run(scene())
    assert not (tmp_path / "s").exists()


def test_whoever_comes_is_taken_by_each_door(tmp_path):
    taken = []

    async def scene():
        doors = [Door(Listener(tmp_path / name), DoorKind.USERS) for name in ("a", "b")]
        came = asyncio.Event()

        def take(connection, door):
            connection.close()
            taken.append(door.listener.path.name)
            came.set()

        keeper = Doorkeeper(doors, take)
        running = asyncio.create_task(keeper.run())
        for name in ("b", "a"):
            came.clear()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / name))
                async with asyncio.timeout(15):
                    await came.wait()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scene())
    assert taken == ["b", "a"]
    assert not any((tmp_path / name).exists() for name in ("a", "b"))
