"""What the tests of the page are made of: its process, requests to it, users at work."""

import os
import socket
import sys
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import processes
from fake_hub import FakeHub
from tornado.web import create_signed_value

sys.path.append(str(Path(__file__).parents[2] / "broker" / "control"))

from control_client import Client

from jgpu.hub.page.base import cookie_secret
from jgpu.wire.address import Address
from jgpu.wire.asking import ask
from jgpu.wire.messages import NameUser, Tag, Upload

#: the page's own, which the hub gave it
TOKEN = "of-the-page"
PREFIX = "/lab/services/jgpu/"
#: users of the broker that the tests look at, with a notebook each
USERS = {"alpha1": ("class1",), "beta2": ("class1", "other"), "gamma3": ("class2",)}


@dataclass
class Answer:
    status: int
    headers: object
    text: str


@dataclass
class RunningPage:
    """The page's process and its hub and broker."""

    hub: FakeHub
    broker: Address
    port: int
    process: object
    tokens: dict

    def request(self, method, path, token="", body="", **headers):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            names["Authorization"] = f"token {token}"
        if body:
            names.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection.request(method, PREFIX + path, body or None, names)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read().decode())
        connection.close()
        return answer

    def get(self, path="", who="reader1", **headers):
        return self.request("GET", path, self.tokens.get(who, who), **headers)

    def stream(self, who="reader1"):
        """What the stream sends, event by event."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        token = self.tokens.get(who, who)
        connection.request("GET", f"{PREFIX}stream", None, {"Authorization": f"token {token}"})
        return Events(connection, connection.getresponse())

    def ask(self, message):
        return ask(self.broker, message, 15)


class Events:
    """Server-sent events of one stream."""

    def __init__(self, connection, response):
        self._connection = connection
        self.status = response.status
        self._response = response

    def next(self):
        """Name and data of the next event; None at the end."""
        name, data = "", []
        while line := self._response.readline().decode():
            if line == "\n" and (name or data):
                return name, "\n".join(data)
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
        return None

    def until(self, text):
        """All data up to the first event that has this in it."""
        seen = ""
        while (event := self.next()) is not None:
            seen += event[1]
            if text in event[1]:
                return seen
        raise AssertionError(f"the stream ended without {text!r}")

    def close(self):
        self._connection.close()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def open_session(admin, user, groups, number):
    """A notebook of a user that keeps memory, of which a part is its model."""
    ask(admin, NameUser(20000 + number, user, groups), 15)
    client = Client(admin)
    client.hello(user=user, label=f"notebooks-of-{user}/train.ipynb", kernel_id=f"kernel-of-{user}")
    client.receive()  # the device is there
    for buffer, nbytes in ((1, 96 << 20), (2, 32 << 20)):
        client.send(Upload(buffer, buffer, nbytes, 0, b"x" * 8))
    client.send(Tag((1,), 1))
    return client


def start_page(hub, admin, port, *options):
    """The page's process, as a unit of its own would be."""
    environment = os.environ | {
        "JUPYTERHUB_API_TOKEN": TOKEN,
        "JUPYTERHUB_API_URL": hub.url,
        "JUPYTERHUB_BASE_URL": "/lab/",
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
    }
    command = [sys.executable, "-m", "jgpu", "hub-page", "--url", f"http://127.0.0.1:{port}"]
    return processes.start([*command, "--admin-socket", str(admin.path), *options], env=environment)


def cookie_of(token):
    """Name and value of the cookie that somebody with this token has after the hub's login."""
    name = "service-jgpu"
    return name, create_signed_value(cookie_secret(TOKEN), name, token).decode()


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
