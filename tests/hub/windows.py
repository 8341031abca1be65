"""Windows of a real browser on the page of a real hub, and what a test that fails saw in them."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lab import DEADLINE_S

__all__ = ["Window", "chromium", "needs_chromium", "page_of_a_hub", "playwright"]

playwright = pytest.importorskip("playwright.sync_api")

_CHROMIUM = "/usr/bin/chromium"

needs_chromium = pytest.mark.skipif(not Path(_CHROMIUM).exists(), reason=f"needs {_CHROMIUM}")

_PAGE = """
import os.path
jgpu.hub.add_page(
    c,
    administrators=["staff"],
    admin=os.path.join(os.path.dirname(_LAB["socket"]), "admin.sock"),
    url="http://127.0.0.1:{port}",
)
"""


def page_of_a_hub(port):
    """What a hub's configuration says for the page to be there; members of "staff" steer."""
    return _PAGE.format(port=port)


@contextlib.contextmanager
def chromium():
    """Debian's browser."""
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Window:
    """A user's window on the page; `view` is Playwright's."""

    lab: object
    view: object
    #: what the browser complained of
    problems: list = field(default_factory=list)
    #: addresses that it asked
    asked: list = field(default_factory=list)

    @classmethod
    def of(cls, browser, lab, user, **options):
        """Log in at the hub, which leads to the page."""
        view = browser.new_context(**options).new_page()
        view.set_default_timeout(1000 * DEADLINE_S)
        window = cls(lab, view)
        view.on("console", window._console)
        view.on("pageerror", lambda error: window.problems.append(str(error)))
        view.on("request", lambda request: window.asked.append(request.url))
        address = f"{lab.url}/services/jgpu/"
        view.goto(address)
        view.fill("input[name=username]", user)
        view.fill("input[name=password]", "lesson")
        view.click("input[type=submit], button[type=submit]")
        view.wait_for_url(address)
        return window

    def _console(self, message):
        if message.type == "error":
            self.problems.append(message.text)

    def shows(self, found):
        """Wait until something is to be seen; where it never is, the error says what was there."""
        try:
            found.wait_for()
        except playwright.TimeoutError as error:
            raise AssertionError(self._described(found)) from error

    def _described(self, found):
        sessions = [(each.user, each.label, each.state) for each in self.lab.report().sessions]
        return (
            f"{found} was not to be seen.\nThe broker has {sessions}.\nThe browser says "
            f"{self.problems}.\nThe page shows:\n{self.view.locator('body').inner_text()}"
        )

    def close(self):
        """Close it."""
        self.view.context.close()
