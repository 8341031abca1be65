"""A real JupyterLab and Notebook 7 on one server, and pages of a real browser on it."""

import contextlib
import http
import json
import os
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import processes
import pytest

__all__ = ["DEADLINE_S", "Jupyter", "Page", "chromium", "needs_chromium", "playwright", "until"]

playwright = pytest.importorskip("playwright.sync_api")

DEADLINE_S = 60.0
_CHROMIUM = "/usr/bin/chromium"
_BUILT = Path(__file__).parents[2] / "labextension/built"
_BAD = ("error", "warning")
#: how the browser's own lines on failed requests begin
_BROWSER = ("Failed to load resource:", "WebSocket connection to")
_SETTINGS = {
    # It asks about news in a notification.
    "@jupyterlab/apputils-extension:notification": {
        "checkForUpdates": False,
        "fetchNews": "false",
    },
}

needs_chromium = pytest.mark.skipif(not Path(_CHROMIUM).exists(), reason=f"needs {_CHROMIUM}")


def until(condition, what, timeout_s=DEADLINE_S):
    """Wait for a condition of another process; its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)
    return value


@contextlib.contextmanager
def chromium():
    """Debian's browser."""
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Jupyter:
    """A server of one person, with their notebooks; has the extension as the repository has it."""

    def __init__(self, directory, *options, settings=None, python=None, **environ):
        """Start it and wait until it answers.

        `settings`: of JupyterLab, by plugin. `environ`: more of the server's environment.
        `python`: of another environment, with the extension as that one has it.
        """
        self.directory = directory
        self.token = secrets.token_hex(16)
        self.notebooks = directory / "notebooks"
        self.notebooks.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/user/user1/"
        if python is None:
            extension = directory / "path/labextensions/@jgpu"
            extension.mkdir(parents=True)
            (extension / "lab").symlink_to(_BUILT)
        self.set(_SETTINGS | (settings or {}))
        places = {
            "JUPYTERLAB_SETTINGS_DIR": str(directory / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(directory / "workspaces"),
            "JUPYTER_CONFIG_DIR": str(directory / "configuration"),
            "JUPYTER_DATA_DIR": str(directory / "data"),
            "JUPYTER_PATH": str(directory / "path"),
            "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
            "PYTHONPATH": str(Path(__file__).parent),
        }
        program = python or sys.executable
        command = [program, "-m", "jupyter", "lab", "--no-browser", f"--port={port}"]
        command += ["--ServerApp.base_url=/user/user1/", f"--IdentityProvider.token={self.token}"]
        command += [f"--ServerApp.root_dir={self.notebooks}", "--ServerApp.port_retries=0"]
        command += ["--LabApp.expose_app_in_browser=True", *options]
        command += ["--allow-root"] if os.getuid() == 0 else []
        self.log = directory / "server.log"
        with self.log.open("wb") as log:
            self.process = processes.start(
                command, stdout=log, stderr=log, env=os.environ | places | environ
            )
        try:
            until(self._answers, "a Jupyter server")
        except BaseException:
            self.close()
            raise

    def _answers(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("api/status")
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, path, body=None, method=None):
        """What the server answers to a program that has its token."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.loads(answer.read() or b"null")

    def kernels(self):
        """What the server says of each kernel that it has.

        jupyter_server 2.21 answers with an internal error at the moment at which a kernel has begun
        and no activity of it is known; it is asked again then.
        """

        def told():
            try:
                return [self.ask("api/kernels")]
            except urllib.error.HTTPError as failed:
                if failed.code != http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise
                return None

        (kernels,) = until(told, "a list of the kernels")
        return kernels

    def end_kernels(self):
        """End all kernels that it has, and those of pages that are closed while they begin one."""

        def ended():
            kernels = self.kernels()
            for kernel in kernels:
                with contextlib.suppress(urllib.error.HTTPError):  # ended by a page, too
                    self.ask(f"api/kernels/{kernel['id']}", method="DELETE")
            return not kernels

        until(ended, "the end of all kernels")

    def set(self, settings):
        """Settings of JupyterLab, by plugin; a page has them from its next load on."""
        for plugin, values in settings.items():
            name = plugin.replace(":", "/")
            file = self.directory / "settings" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))

    def write(self, name, *cells, kernel="python3"):
        """A notebook with these cells."""
        metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
        made = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells], metadata=metadata
        )
        nbformat.write(made, self.notebooks / name)

    def kernel(self, name):
        """The id of a notebook's kernel, once it has one that does nothing."""

        def found():
            for each in self.ask("api/sessions"):
                if each["path"] == name and each["kernel"]["execution_state"] == "idle":
                    return each["kernel"]["id"]
            return None

        return until(found, f"a kernel of {name}")

    def close(self):
        """End it, and its kernels with it."""
        self.process.end()


class Page:
    """A browser's page on a notebook; `view` is Playwright's."""

    def __init__(self, browser, jupyter, path, **options):
        """`path`: below the server's address, as "lab/tree/lesson.ipynb"."""
        self.jupyter = jupyter
        self.view = browser.new_context(
            viewport={"width": 1280, "height": 860}, **options
        ).new_page()
        self.view.set_default_timeout(1000 * DEADLINE_S)
        #: what the console says of the extension's code, or of its requests
        self.problems = []
        #: whether a test has requests fail; then the browser says so by itself
        self.may_fail = False
        #: addresses below jgpu/ that it asked
        self.asked = []
        self.view.on("console", self._console)
        self.view.on("pageerror", self._error)
        self.view.on("request", lambda request: self._ask(request.url))
        self.view.on("websocket", self._connect)
        self._sockets = []
        self.path = path

    def _console(self, message):
        said = message.location.get("url", "") + message.text
        by_itself = message.text.startswith(_BROWSER) and self.may_fail
        if ("@jgpu" in said or "/jgpu/" in said) and message.type in _BAD and not by_itself:
            self.problems.append(message.text)

    def _error(self, error):
        if "@jgpu" in (error.stack or ""):
            self.problems.append(error.stack)

    def _ask(self, url):
        if "/jgpu/" in url and "labextensions" not in url:
            self.asked.append(url)

    def _connect(self, socket):
        self._ask(socket.url)
        if "/jgpu/" in socket.url:
            self._sockets.append(socket)

    @property
    def listens(self):
        """Whether a WebSocket for the state is open."""
        self.view.evaluate("1")  # Playwright tells of nothing while it is asked nothing
        return not all(socket.is_closed() for socket in self._sockets)

    def open(self):
        """Load it and wait for the notebook's cells."""
        joint = "&" if "?" in self.path else "?"
        self.view.goto(f"{self.jupyter.url}{self.path}{joint}token={self.jupyter.token}")
        self.ready()
        return self

    def ready(self):
        """Wait until the notebook is there."""
        self.view.wait_for_selector(".jp-Notebook .jp-CodeCell:visible")

    @property
    def status(self):
        """Where the state of the notebook in front is said."""
        return self.view.locator(".jgpu-Status:visible [role=button]")

    def says(self, text):
        """Wait until the status is this."""
        playwright.expect(self.status).to_have_text(text, timeout=1000 * DEADLINE_S)

    @property
    def cells(self):
        """The notebook's code cells."""
        return self.view.locator(".jp-Notebook:visible .jp-CodeCell")

    def run(self, *numbers):
        """Run cells by the keyboard, as a person does."""
        for number in numbers:
            self.cells.nth(number).locator(".cm-content").click()
            self.view.keyboard.press("Control+Enter")

    def mark(self, number, text):
        """Wait until a cell says this; empty: nothing."""
        cell = self.cells.nth(number)
        if text:
            playwright.expect(cell).to_have_attribute("data-jgpu-text", text)
            shown = cell.evaluate("node => getComputedStyle(node, '::after').display")
            assert shown == "block"
        else:
            playwright.expect(cell).not_to_have_attribute("data-jgpu", "waiting")

    def hide(self, hidden=True):
        """Have the browser say that nobody sees the page, or that somebody does."""
        self.view.evaluate(
            """hidden => {
                const say = (name, get) =>
                    Object.defineProperty(document, name, { configurable: true, get });
                say('hidden', () => hidden);
                say('visibilityState', () => (hidden ? 'hidden' : 'visible'));
                document.dispatchEvent(new Event('visibilitychange'));
            }""",
            hidden,
        )

    def close(self):
        """Close it; the extension had nothing to complain of.

        What the browser says of connections that end with the page is none of its complaints.
        """
        problems = list(self.problems)
        self.view.context.close()
        self.problems.clear()
        assert not problems, problems
