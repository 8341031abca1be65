"""The broker's side of one question, built from `jgpu.wire`: the seam where a broker would be.

As a program, it stands in for the Python of a private broker: `fake_control.py ... --socket PATH`.
"""

import os
import socket
import sys
import threading
from pathlib import Path

from jgpu.wire.framing import FrameReader, FrameWriter
from jgpu.wire.messages import ControlMessage, LeaveSeat, Refused, SeatTaken, TakeSeat


class FakeControl:
    """Answers seats on a Unix socket and keeps every request, in order, in `requests`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: list[ControlMessage] = []
        #: said instead of any answer; `silent` closes the connection unanswered
        self.refusal: Refused | None = None
        self.silent = False
        self.garbage = b""
        #: by type of request, what is answered instead
        self.replies: dict[type, object] = {}
        self._tickets = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self.serve, daemon=True)

    @property
    def address(self) -> str:
        return f"unix:{self.path}"

    def start(self) -> "FakeControl":
        self._thread.start()
        return self

    def stop(self) -> None:
        """Like a broker that was killed: the socket's file stays, nobody answers."""
        if self._socket.fileno() < 0:
            return
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        reader: FrameReader[ControlMessage] = FrameReader(ControlMessage)
        while data := connection.recv(1 << 16):
            for message in reader.feed(data):
                self.requests.append(message)
                if self.silent:
                    return
                reply = self.garbage or FrameWriter().encode(self._reply(message), reader.seen)
                connection.sendall(reply)
                return

    def _reply(self, message: ControlMessage) -> SeatTaken | Refused:
        if self.refusal is not None:
            return self.refusal
        if type(message) in self.replies:
            return self.replies[type(message)]
        if isinstance(message, TakeSeat):
            self._tickets += 1
            return SeatTaken(f"ticket-{self._tickets}")
        if isinstance(message, LeaveSeat):
            return SeatTaken(message.ticket)
        raise AssertionError(message)


if __name__ == "__main__":
    where = Path(sys.argv[sys.argv.index("--socket") + 1])
    with where.with_name("starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    where.unlink(missing_ok=True)
    FakeControl(where).serve()
