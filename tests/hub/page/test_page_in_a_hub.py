"""The page in a real hub, behind its proxy, as people's browsers have it."""

from pathlib import Path

import pytest
from lab import Lab, until
from page_parts import free_port, open_session

from jgpu.wire.messages import AskQuotas
from jgpu.wire.report import decode_quotas

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = "/usr/bin/chromium"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.usefixtures("needs_lab"),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"needs {CHROMIUM}"),
]

USERS = {"user1": ["class1"], "user2": ["class2"], "boss1": ["staff"]}
PAGE = """
import os.path
jgpu.hub.add_page(
    c,
    administrators=["staff"],
    admin=os.path.join(os.path.dirname(_LAB["socket"]), "admin.sock"),
    url="http://127.0.0.1:{port}",
)
"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tools:
        chromium = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def lab():
    with Lab(USERS, device="null", extra=PAGE.format(port=free_port())) as lab:
        lab.clients = [
            open_session(lab.admin, user, tuple(USERS[user]), number)
            for number, user in enumerate(("user1", "user2"))
        ]
        yield lab
        for client in lab.clients:
            client.close()


def log_in(browser, lab, user):
    """A window of this user's on the page, through the hub's login; what went wrong in it."""
    window = browser.new_context().new_page()
    window.set_default_timeout(30_000)
    problems, asked = [], []
    window.on("console", lambda message: message.type == "error" and problems.append(message.text))
    window.on("pageerror", lambda error: problems.append(str(error)))
    window.on("request", lambda request: asked.append(request.url))
    window.goto(f"{lab.url}/services/jgpu/")
    window.fill("input[name=username]", user)
    window.fill("input[name=password]", "lesson")
    window.click("input[type=submit], button[type=submit]")
    window.wait_for_url(f"{lab.url}/services/jgpu/")
    return window, problems, asked


@pytest.mark.timeout(200)
def test_a_student_sees_their_own_part_and_nothing_comes_from_elsewhere(browser, lab):
    window, problems, asked = log_in(browser, lab, "user1")
    row = window.get_by_role("row", name="user1").first
    row.get_by_text("notebooks-of-user1/train.ipynb").wait_for()
    for view in ("Now", "People", "Usage", "Events"):
        window.get_by_role("link", name=view, exact=True).click()
        window.get_by_role("heading", level=1).first.wait_for(state="attached")
        assert "user2" not in window.content()
        assert window.get_by_role("button", name="Drain").count() == 0
    host = lab.url.partition("/lab")[0]
    assert [url for url in asked if not url.startswith((host, "data:"))] == []
    assert problems == []
    window.context.close()


@pytest.mark.timeout(200)
def test_an_administrator_sets_a_quota_by_keyboard_and_it_counts_at_once(browser, lab):
    window, problems, _ = log_in(browser, lab, "boss1")
    window.get_by_role("link", name="People").click()
    window.get_by_role("link", name="Set what user2 may have").press("Enter")
    window.get_by_label("weight").fill("3")
    window.get_by_label("weight").press("Enter")
    window.get_by_role("status").get_by_text("Set: user:user2").wait_for()
    until(lambda: weight_of(lab, "user2") == 3.0, "the weight", 5)
    # The table says so without being asked, and the search keeps its focus while it changes.
    window.get_by_role("row", name="user2").get_by_role("cell", name="3", exact=True).wait_for()
    search = window.get_by_label("Search")
    search.press_sequentially("user2")
    playwright.expect(window.get_by_role("row", name="user1")).to_have_count(0)
    playwright.expect(search).to_be_focused()
    assert problems == []
    window.context.close()


@pytest.mark.timeout(250)
def test_an_open_page_shows_what_changes_and_is_back_by_itself_after_the_hub(browser, lab):
    window, _, _ = log_in(browser, lab, "boss1")
    free = window.get_by_role("button", name="Free the memory of user1")
    free.focus()
    lab.clients.append(open_session(lab.admin, "user3", ("class1",), 3))
    window.get_by_text("notebooks-of-user3/train.ipynb").wait_for()
    playwright.expect(free).to_be_focused()  # rows that came did not take it away
    lab.end_hub()
    window.get_by_text("does not answer").first.wait_for()
    lab.start_hub()
    lab.clients.append(open_session(lab.admin, "user4", ("class1",), 4))
    window.get_by_text("notebooks-of-user4/train.ipynb").wait_for(timeout=60_000)
    window.context.close()


def weight_of(lab, user):
    from jgpu.wire.address import ask

    report = decode_quotas(ask(lab.admin, AskQuotas(user), 15).json)
    return report.users[0].weight
