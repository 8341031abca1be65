"""What somebody tries who wants to be somebody else: a program for any user, in any namespace.

`attempts.py SOCKET NAME [ARGUMENT]` prints one line of JSON: what the broker said, or that there
was no way to it.
"""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

from jgpu.errors import JgpuError
from jgpu.wire import limits
from jgpu.wire.address import Address
from jgpu.wire.arena import Arena
from jgpu.wire.asking import ask
from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import (
    AskQuotas,
    AskSockets,
    AskStatus,
    AskStop,
    ControlReply,
    Evict,
    Hello,
    LeaveSeat,
    MakeSocket,
    NameUser,
    Refused,
    RemoveSocket,
    Runtime,
    SetQuota,
    TakeSeat,
    UsePolicy,
)
from jgpu.wire.reports.report import decode

#: what concerns others
COMMANDS = {
    "quota": lambda _: SetQuota("default", (("weight", "9"),)),
    "policy": lambda _: UsePolicy("fifo"),
    "stop": lambda _: AskStop(),
    "name": lambda _: NameUser(os.getuid(), "user2"),
    "make": lambda _: MakeSocket("user2/", "user2"),
    "remove": lambda server: RemoveSocket(server),
    "sockets": lambda _: AskSockets(),
    "evict": lambda session: Evict(int(session)),
    "look": lambda user: AskQuotas(user),
    "leave": lambda ticket: LeaveSeat(ticket),
}


def attempt(address, name, argument):
    """What came of it."""
    if name in COMMANDS:
        return {"reply": type(ask(address, COMMANDS[name](argument))).__name__}
    if name == "who":
        return who(address)
    if name == "ticket":
        return session(address, ticket=argument, user="user2")
    if name == "seat":
        return {"ticket": ask(address, TakeSeat(limits.PROTOCOL, "kernel", user="user2")).ticket}
    raise ValueError(name)


def who(address):
    """Who a session of this process is, whatever it says of itself, and whom it sees."""
    return session(address, user="user2", pid=1) | {
        "sees": [each.name for each in decode(ask(address, AskStatus()).json).users]
    }


def session(address, **fields):
    """Open one as a kernel does."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as stream:
        stream.connect(os.fspath(address.path))
        arena = Arena.create(1 << 20)
        said = {"protocol": limits.PROTOCOL, "runtime": Runtime("3.11", "2.13.0", ""), "pid": 1}
        hello = Hello(**(said | {"arena": 1 << 20} | fields))
        socket.send_fds(stream, [FrameWriter().encode(hello, 0)], [arena.descriptor])
        arena.close()
        reader = FrameReader(ControlReply)
        while data := stream.recv(1):
            for reply in reader.feed(data):
                if isinstance(reply, Refused):
                    return {"refused": reply.text}
                return {"user": reply.user}
    return {"refused": "the connection was closed"}


def main(path, name, argument=""):
    try:
        found = attempt(Address(Path(path), "environment"), name, argument)
    except (JgpuError, OSError) as error:
        found = {"refused": str(error)}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
