"""A teaching lab of a test's own: a host's broker, a real JupyterHub, its proxy, and its users.

Each user has a uid. Servers are started by the hub and spoken to through its proxy, with the tokens
that the hub gave out; their kernels are spoken to over the websockets that a browser would open.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import processes
import requests
import walls
import websocket
from uid_spawner import GROUP, HOMES

from jgpu.wire.address import Address, admin_socket
from jgpu.wire.asking import ask
from jgpu.wire.messages import AskStatus
from jgpu.wire.reports.report import decode

__all__ = ["BROKER_UID", "DEADLINE_S", "Kernel", "Lab", "missing", "until"]

DEADLINE_S = 90.0
#: the system account that a host's broker has
BROKER_UID = 990
_HERE = Path(__file__).parent
_PROXY = _HERE / "node_modules/.bin/configurable-http-proxy"
_CONFIGURATION = _HERE / "lab_config.py"


def missing():
    """What a lab needs and this machine has not; empty where it has everything."""
    if not _PROXY.exists():
        return "needs JupyterHub's proxy, which make test-slow installs where npm is"
    return walls.problem()


def until(condition, what, timeout_s=DEADLINE_S):
    """Wait for a condition of another process; its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)
    return value


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Lab:
    """A directory, its broker, its hub of the moment, and a session with the hub's API."""

    def __init__(
        self, users, *options, device="cpu", extra="", properties=None, packages=None, hub=True
    ):
        """`users`: name -> groups. `properties`: of groups.

        `extra`: more lines of the hub's configuration.
        `packages`: a folder with another version of the hub. `hub`: whether there is one.
        """
        self._open = contextlib.ExitStack()
        # Short, for sockets' paths, and open to everybody.
        name = self._open.enter_context(tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp"))
        self.directory = Path(name)
        self.directory.chmod(0o755)
        for folder in ("broker", "homes", "hub"):
            (self.directory / folder).mkdir(mode=0o755)
        (self.directory / "hub").chmod(0o700)
        os.chown(self.directory / "broker", BROKER_UID, BROKER_UID)
        self.address = Address(self.directory / "broker/broker.sock", "environment")
        self.admin = Address(admin_socket(self.address.path), "environment")
        self.users, self.extra, self.properties = users, extra, properties or {}
        self.token = secrets.token_hex(16)
        self.ports = [_free_port() for _ in range(3)]
        self.hub = self.broker = None
        self._wants_hub = hub
        self._options = ["--device", device, "--threads", "1", *options]
        path = os.pathsep.join(map(str, [*([packages] if packages else []), _HERE]))
        bin_ = os.pathsep.join([str(_PROXY.parent), str(Path(sys.executable).parent)])
        self.environ = os.environ | {
            HOMES: str(self.directory / "homes"),
            "CONFIGPROXY_AUTH_TOKEN": secrets.token_hex(16),
            "JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONPATH": path,
        }
        self.environ.pop("JGPU_ADDRESS", None)

    def __enter__(self):
        try:
            self.start_broker()
            if self._wants_hub:
                self.start_hub()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    # -- the broker --------------------------------------------------------------------------

    def start_broker(self):
        """A host's broker under its own account; users reach it by their group."""
        command = [sys.executable, "-m", "jgpu", "broker", "--socket", str(self.address.path)]
        command += ["--spool", str(self.directory / "broker/spool"), "--group", GROUP]
        command += self._options
        with self.log("broker").open("ab") as log:
            self.broker = processes.start(
                walls.opened(walls.as_user(BROKER_UID, command, GROUP)),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory / "broker",
                env=self.environ | {"HOME": str(self.directory / "broker")},
            )
        until(self._serves, "a ready broker")

    def _serves(self):
        assert self.broker.poll() is None, self.log("broker").read_text()
        try:
            return self.report().devices[0].state == "ready"
        except ConnectionError:
            return False

    def report(self):
        """The whole report, as an administrator sees it."""
        return decode(ask(self.admin, AskStatus(), DEADLINE_S).json)

    def sessions(self):
        """Sessions of the report, by user."""
        return {each.user: each for each in self.report().sessions}

    def shares(self, seconds):
        """Of device time, by user, in a window of so much of it that begins now."""
        before = self._device_seconds()
        end = sum(before.values()) + seconds
        until(lambda: sum(self._device_seconds().values()) > end, "device time")
        after = self._device_seconds()
        spent = sum(after.values()) - sum(before.values())
        return {user: (after[user] - before[user]) / spent for user in before}

    def _device_seconds(self):
        return {user: session.device_seconds for user, session in self.sessions().items()}

    def home_of(self, uid):
        """A home for a user whom no hub has made one."""
        home = self.directory / f"homes/{uid}"
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
        return home

    # -- the hub -----------------------------------------------------------------------------

    @property
    def url(self):
        """Where browsers go."""
        return f"http://127.0.0.1:{self.ports[0]}/lab"

    def log(self, name):
        """Where a process of the lab writes."""
        return self.directory / f"{name}.log"

    def start_hub(self):
        """Start it, or start it again; wait until it answers."""
        said = {
            "users": self.users,
            "properties": self.properties,
            "token": self.token,
            "ports": self.ports,
            "socket": str(self.address.path),
            "directory": str(self.directory / "hub"),
        }
        (self.directory / "hub/lab.json").write_text(json.dumps(said))
        (self.directory / "hub/extra.py").write_text(self.extra)
        command = [sys.executable, "-m", "jupyterhub", "-f", str(_CONFIGURATION)]
        with self.log("hub").open("ab") as log:
            self.hub = processes.start(
                walls.opened(command),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory / "hub",
                env=self.environ | {"TESTS_LAB": str(self.directory / "hub/lab.json")},
            )
        until(self._answers, "a hub that answers")

    def _answers(self):
        assert self.hub.poll() is None, self.log("hub").read_text()[-8000:]
        try:
            return self.api("GET", "/").status_code == 200
        except requests.ConnectionError:
            return False

    def end_hub(self, number=signal.SIGTERM):
        """End the hub and nothing else; what it started goes on."""
        self.hub.send_signal(number)
        self.hub.wait(DEADLINE_S)

    def api(self, method, path, **body):
        """Ask the hub, as an administrator."""
        return requests.request(
            method,
            f"{self.url}/hub/api{path}",
            headers={"Authorization": f"token {self.token}"},
            timeout=DEADLINE_S,
            **({"json": body} if body else {}),
        )

    def start_servers(self, *users):
        """Start these users' servers at once, and wait for all."""
        for user in users:
            answer = self.api("POST", f"/users/{user}/server")
            assert answer.status_code in (201, 202), answer.text
        for user in users:
            until(lambda user=user: self.server(user).get("ready"), f"{user}'s server")

    def server(self, user):
        """What the hub says of a user's server; nothing while there is none."""
        model = self.api("GET", f"/users/{user}").json()
        return model["servers"].get("", {})

    def progress(self, user):
        """Start a server, and what its user is told meanwhile."""
        answer = self.api("POST", f"/users/{user}/server")
        assert answer.status_code in (201, 202), answer.text
        told = self.api("GET", f"/users/{user}/server/progress").text
        until(lambda: self.server(user).get("ready"), f"{user}'s server")
        return told

    def stop_server(self, user):
        """End a user's server."""
        assert self.api("DELETE", f"/users/{user}/server").status_code in (202, 204)
        until(lambda: not self.server(user), f"the end of {user}'s server")

    def token_of(self, user):
        """A token of this user's own."""
        answer = self.api("POST", f"/users/{user}/tokens", note="tests")
        assert answer.status_code == 201, answer.text
        return answer.json()["token"]

    def request_as(self, token, owner, path):
        """Ask a user's server with a token of anybody's."""
        return requests.get(
            f"{self.url}/user/{owner}{path}",
            headers={"Authorization": f"token {token}"},
            timeout=DEADLINE_S,
        )

    def kernel(self, user, path="lesson.ipynb"):
        """A kernel of the stock kind on this user's server, ready for cells."""
        kernel = Kernel(self, user, self.token_of(user), path)
        self._open.callback(kernel.close)
        return kernel

    def close(self):
        """End everything."""
        with contextlib.ExitStack() as last:
            last.callback(self._open.close)
            if self.broker is not None:
                last.callback(self.broker.end)
            if self.hub is not None:
                last.callback(self.hub.end, signal.SIGKILL)
                last.callback(self._end_servers)

    def _end_servers(self):
        if self.hub.poll() is not None:
            return
        with contextlib.suppress(requests.ConnectionError):
            for user in self.users:
                self.api("DELETE", f"/users/{user}/server")
            for user in self.users:
                until(lambda user=user: not self.server(user), f"the end of {user}'s server")


class Kernel:
    """A kernel behind the hub's proxy: cells are begun and awaited over its websocket."""

    def __init__(self, lab, user, token, path):
        self._base = f"{lab.url}/user/{user}"
        self._headers = {"Authorization": f"token {token}"}
        made = self.request(
            "POST",
            "/api/sessions",
            {"kernel": {"name": "python3"}, "name": path, "path": path, "type": "notebook"},
        )
        assert made.status_code == 201, made.text
        self.id = made.json()["kernel"]["id"]
        self._socket = None
        self.connect()

    def request(self, method, path, body=None):
        """Ask the user's server."""
        return requests.request(
            method, self._base + path, headers=self._headers, json=body, timeout=DEADLINE_S
        )

    def connect(self):
        """Open the websocket, at first and after the proxy was away."""
        self.close()
        where = self._base.replace("http", "ws", 1)
        self._socket = websocket.create_connection(
            f"{where}/api/kernels/{self.id}/channels?session_id={uuid.uuid4().hex}",
            header=self._headers,
            timeout=DEADLINE_S,
        )

    def begin(self, code):
        """Send a cell; its number, for `end`."""
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "version": "5.3"}
        header |= {"username": "", "session": number, "date": ""}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}}
        self._socket.send(json.dumps(message | {"content": content, "buffers": []}))
        return number

    def until_printed(self, number, text):
        """Wait until a cell has printed this; what it has printed so far."""
        printed = ""
        while text not in printed:
            kind, content = self._next(number)
            printed += content["text"] if kind == "stream" else ""
            assert kind != "error", "\n".join(content["traceback"])
        return printed

    def end(self, number):
        """Wait for a cell's end; what it printed, and its error's last line or ''."""
        printed, error = "", ""
        while True:
            kind, content = self._next(number)
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                error = f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, error

    def run(self, code):
        """Run a cell to its end; what it printed, and its error."""
        return self.end(self.begin(code))

    def ok(self, code):
        """What a cell prints that has to succeed."""
        printed, error = self.run(code)
        assert not error, error
        return printed.strip()

    def interrupt(self):
        """As a notebook's button."""
        assert self.request("POST", f"/api/kernels/{self.id}/interrupt").status_code == 204

    def _next(self, number):
        while True:
            message = json.loads(self._socket.recv())
            if message["parent_header"].get("msg_id") == number and message["channel"] == "iopub":
                return message["msg_type"], message["content"]

    def close(self):
        """Hang up; the server ends its kernels with itself."""
        if self._socket is not None:
            self._socket.shutdown()
