"""The page in a real hub, behind its proxy, as people's browsers have it."""

import pytest
from lab import Lab, until
from page_parts import free_port, open_session
from windows import Window, chromium, needs_chromium, page_of_a_hub, playwright

from jgpu.wire.asking import ask
from jgpu.wire.messages import AskQuotas
from jgpu.wire.reports.report import decode_quotas

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.usefixtures("needs_lab"),
    needs_chromium,
]

USERS = {"user1": ["class1"], "user2": ["class2"], "boss1": ["staff"]}


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def lab(needs_lab):
    with Lab(USERS, device="null", extra=page_of_a_hub(free_port())) as lab:
        lab.clients = [
            open_session(lab.admin, user, tuple(USERS[user]), number)
            for number, user in enumerate(("user1", "user2"))
        ]
        yield lab
        for client in lab.clients:
            client.close()


def notebook_of(window, user):
    """Where the table of sessions names this user's notebook."""
    return window.view.get_by_role("cell", name=f"notebooks-of-{user}/train.ipynb")


@pytest.mark.timeout(200)
def test_a_student_sees_their_own_part_and_nothing_comes_from_elsewhere(browser, lab):
    window = Window.of(browser, lab, "user1")
    window.shows(notebook_of(window, "user1"))
    for name in ("Now", "People", "Usage", "Events"):
        window.view.get_by_role("link", name=name, exact=True).click()
        window.view.get_by_role("heading", level=1).first.wait_for(state="attached")
        assert "user2" not in window.view.content()
        assert window.view.get_by_role("button", name="Drain").count() == 0
    host = lab.url.partition("/lab")[0]
    assert [url for url in window.asked if not url.startswith((host, "data:"))] == []
    assert window.problems == []
    window.close()


@pytest.mark.timeout(200)
def test_an_administrator_sets_a_quota_by_keyboard_and_it_counts_at_once(browser, lab):
    window = Window.of(browser, lab, "boss1")
    view = window.view
    view.get_by_role("link", name="People").click()
    view.get_by_role("link", name="Set what user2 may have").press("Enter")
    view.get_by_label("weight").fill("3")
    view.get_by_label("weight").press("Enter")
    window.shows(view.get_by_role("status").get_by_text("Set: user:user2"))
    until(lambda: weight_of(lab, "user2") == 3.0, "the weight", 5)
    # The table says so without being asked, and the search keeps its focus while it changes.
    window.shows(view.get_by_role("row", name="user2").get_by_role("cell", name="3", exact=True))
    search = view.get_by_label("Search")
    search.press_sequentially("user2")
    playwright.expect(view.get_by_role("row", name="user1")).to_have_count(0)
    playwright.expect(search).to_be_focused()
    assert window.problems == []
    window.close()


@pytest.mark.timeout(200)
def test_scripts_that_come_late_and_a_stream_that_fails_at_first_cost_nothing_for_good(
    browser, lab
):
    window = Window.of(browser, lab, "boss1")
    view, streams = window.view, []

    def late(route):
        # Whoever begins without this script does so in the browser's next turn, which is over then.
        # Asked from here: what a page is to wait for itself is an eval, which this one forbids.
        until(lambda: view.evaluate("typeof htmx != 'undefined'"), "htmx")
        view.evaluate("new Promise((over) => setTimeout(() => setTimeout(over)))")
        route.continue_()

    def failing(route):
        streams.append(route)
        route.abort() if len(streams) == 1 else route.continue_()

    view.route("**/hx-sse.min.js*", late)
    view.route("**/stream", failing)
    view.reload(wait_until="commit")
    window.shows(view.get_by_text("The page's server does not answer"))
    until(lambda: view.evaluate("1") and len(streams) > 1, "another stream")
    lab.clients.append(open_session(lab.admin, "user5", ("class1",), 5))
    window.shows(notebook_of(window, "user5"))
    playwright.expect(view.locator("#problem")).to_be_hidden()
    window.close()


@pytest.mark.timeout(400)
def test_an_open_page_shows_what_changes_and_is_back_by_itself_after_the_hub(browser, lab):
    window = Window.of(browser, lab, "boss1")
    free = window.view.get_by_role("button", name="Free the memory of user1")
    free.focus()
    lab.clients.append(open_session(lab.admin, "user3", ("class1",), 3))
    window.shows(notebook_of(window, "user3"))
    playwright.expect(free).to_be_focused()  # rows that came did not take it away
    lab.end_hub()
    window.shows(window.view.get_by_text("does not answer").first)
    lab.start_hub()
    lab.clients.append(open_session(lab.admin, "user4", ("class1",), 4))
    window.shows(notebook_of(window, "user4"))
    playwright.expect(window.view.locator("#problem")).to_be_hidden()
    window.close()


def weight_of(lab, user):
    report = decode_quotas(ask(lab.admin, AskQuotas(user), 15).json)
    return report.users[0].weight
