"""A Jupyter server's process with the extension, requests to it, and notebooks at its broker."""

import json
import os
import socket
import sys
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from http.cookies import SimpleCookie

import processes
import websocket
from control_client import Client
from merging import merged
from real_broker import until

from jgpu.wire.messages import CellEnded, CellStarted, Upload

TOKEN = "the-owners"
BASE = "/user/user1/"
DEADLINE_S = 20.0


class Answer:
    """What a request was answered with."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)


class Lab:
    """A running server."""

    def __init__(self, port, process, log, base=BASE):
        self.port, self.process, self.log, self.base = port, process, log, base
        #: where its kernels go
        self.broker = None

    def request(self, method, path, body=None, token=TOKEN, **headers):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            names["Authorization"] = f"token {token}"
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        connection.request(method, self.base + path, data, names)
        answer = Answer(connection.getresponse())
        connection.close()
        return answer

    def state(self):
        return self.request("GET", "jgpu/api/state").json

    def act(self, what, kernel, **headers):
        return self.request("POST", f"jgpu/api/{what}", {"kernel": kernel}, **headers)

    def listen(self, token=TOKEN, **options):
        return Listener(f"ws://127.0.0.1:{self.port}{self.base}jgpu/api/watch", token, **options)

    def cookies(self):
        """What a browser has after the login: the cookie's header, and the XSRF token."""
        answer = self.request("GET", f"api/me?token={TOKEN}", token="")
        found = SimpleCookie()
        for header in answer.headers.get_all("Set-Cookie") or ():
            found.load(header)
        form = self.request("GET", "login", token="")
        for header in form.headers.get_all("Set-Cookie") or ():
            found.load(header)
        text = "; ".join(f"{name}={morsel.value}" for name, morsel in found.items())
        return text, found["_xsrf"].value


class Listener:
    """A page's WebSocket: the state as it is after each message."""

    def __init__(self, url, token=TOKEN, **options):
        header = [f"Authorization: token {token}"] if token else []
        header += options.pop("header", [])
        self.socket = websocket.create_connection(
            url,
            timeout=DEADLINE_S,
            header=header,
            suppress_origin="origin" not in options,
            **options,
        )
        #: None before the first
        self.state = None
        self.messages = []

    def next(self):
        """The state after the next message."""
        message = json.loads(self.socket.recv())
        self.messages.append(message)
        if "state" in message:
            assert self.state is None
            self.state = message["state"]
        else:
            self.state = merged(message["patch"], self.state)
        return self.state

    def until(self, condition):
        """The state that first fulfils it."""
        deadline = time.monotonic() + DEADLINE_S
        while self.state is None or not condition(self.state):
            assert time.monotonic() < deadline, self.state
            self.next()
        return self.state

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Notebook:
    """A session of a kernel, made of the wire alone; it keeps `nbytes`."""

    def __init__(self, address, kernel, nbytes=8 << 20, path="lesson.ipynb"):
        self.client = Client(address)
        self.reply = self.client.hello(label=path, kernel_id=kernel)
        self.client.receive()  # the device is there
        self.works = 0
        self.cells = 0
        if nbytes:
            self.cell(nbytes)

    def cell(self, nbytes):
        """A cell that makes a tensor of so many bytes."""
        self.cells += 1
        self.send(CellStarted(str(self.cells)))
        self.works += 1
        self.send(Upload(self.works, self.works, nbytes, 0, b"x" * 8))
        self.send(CellEnded())

    def send(self, message):
        self.client.send(message)

    def close(self):
        self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def start_lab(directory, *options, base=BASE, module="jupyter_server", **environ):
    """A server that reads no configuration but what is said here."""
    port = free_port()
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(directory / "config"),
        "JUPYTER_DATA_DIR": str(directory / "data"),
        "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_TOKEN": TOKEN,
    }
    for name in ("JGPU_ADDRESS", "JGPU_TICKET", "JGPU_PROBLEM", "JUPYTERHUB_USER"):
        environment.pop(name, None)
    environment["JUPYTERHUB_SERVICE_URL"] = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", module, "--allow-root", "--no-browser"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.base_url={base}", f"--ServerApp.root_dir={directory}"]
    command += ["--ServerApp.jpserver_extensions={'jgpu.labserver': True}", *options]
    log = directory / "log"
    with log.open("wb") as stream:
        process = processes.start(
            command, env=environment | environ, stdout=stream, stderr=stream, cwd=directory
        )
    made = Lab(port, process, log, base)
    try:
        until(lambda: process.poll() is not None or answers(made))
        assert process.poll() is None, log.read_text()
        yield made
    finally:
        process.end()


def answers(lab):
    try:
        return lab.request("GET", "api").status in (200, 403)
    except OSError:
        return False
