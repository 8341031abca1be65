"""Who may see what: each visitor their own part, others without names, by scopes alone."""

import contextlib

import pytest
from page_parts import USERS
from real_broker import until

#: addresses that show anything to a visitor
VIEWS = [
    "",
    "people",
    "usage",
    "usage?by=group",
    "usage.csv",
    "events",
    "people.csv",
    "people?q=a&sort=used&desc=1",
    "people?group=class1",
    "people?group=class2",
]


def everything_of(user):
    """What may be read of a user only by those who may see them."""
    return {user, f"notebooks-of-{user}", f"kernel-of-{user}"}


def found(text):
    """Users of whom there is anything in a text."""
    return {user for user in USERS if any(word in text for word in everything_of(user))}


@pytest.mark.parametrize("path", VIEWS)
@pytest.mark.parametrize("fragment", [False, True], ids=["page", "fragment"])
@pytest.mark.parametrize(
    ("who", "seen"),
    [
        ("alpha1", {"alpha1"}),
        ("gamma3", {"gamma3"}),
        ("tutor1", {"alpha1", "beta2"}),
        ("reader1", set(USERS)),
        ("admin1", set(USERS)),
    ],
)
def test_nobody_finds_another_without_a_right_to(page, path, fragment, who, seen):
    answer = page.get(path, who, **({"HX_Request": "true"} if fragment else {}))
    assert answer.status == 200
    assert found(answer.text) <= seen
    if path in ("", "people"):
        assert found(answer.text) == seen


@pytest.mark.parametrize(("who", "seen"), [("alpha1", {"alpha1"}), ("tutor1", {"alpha1", "beta2"})])
def test_nor_in_the_stream(page, who, seen):
    events = page.stream(who)
    assert events.status == 200
    text = events.until('id="memory"')
    events.close()
    assert found(text) == seen
    assert "another user" in text


def test_others_are_there_without_names(page):
    text = page.get("", "alpha1").text
    assert text.count('id="session-') == 3
    assert text.count(">another user</th>") == 3  # two sessions, and the sum of their memory
    assert "64 MiB" in text  # ephemeral, of the two together
    assert "tutor" not in text


def test_who_sees_nobody_else_has_no_usage_by_groups(page):
    """Sums of groups count whoever is in several more than once, and their reader among them."""
    assert page.get("usage.csv?by=group", "beta2").text == page.get("usage.csv", "beta2").text
    assert page.get("usage.csv?by=group", "tutor1").text.startswith("day,group,")


def test_a_service_of_the_hub_is_nobodys_user(page):
    token = page.hub.knows("alpha1", kind="service")
    try:
        assert found(page.get("", token).text) == set()
    finally:
        page.hub.knows("alpha1", groups=USERS["alpha1"])


def test_a_scope_with_a_filter_reaches_no_further(page):
    one = page.hub.knows("tutor2", "custom:jgpu:tutor!group=class2", groups=["class1", "class2"])
    assert found(page.get("", one).text) == {"gamma3"}
    not_in_it = page.hub.knows("tutor3", "custom:jgpu:tutor!group=class2", groups=["class1"])
    assert found(page.get("", not_in_it).text) == set()
    filtered = page.hub.knows("reader2", "custom:jgpu:read!group=class1", "custom:jgpu:admin!user")
    assert found(page.get("", filtered).text) == set()


def test_being_the_hubs_administrator_is_no_right_here(page):
    token = page.hub.knows("admin2", "admin:users", "admin:servers", "list:users")
    page.hub.models[token]["admin"] = True
    assert found(page.get("", token).text) == set()


# -- rights that end ---------------------------------------------------------------------------


def test_a_right_that_was_taken_away_ends_with_the_next_request(page):
    token = page.hub.knows("reader3", "custom:jgpu:read")
    assert found(page.get("", token).text) == set(USERS)
    page.hub.knows("reader3")
    assert found(page.get("", token).text) == set()


@pytest.mark.parametrize("path", ["", "people", "stream"])
def test_a_revoked_token_is_a_no_and_leads_nowhere(page, path):
    answer = page.get(path, "token-that-was-revoked")
    assert answer.status == 403
    assert "Location" not in answer.headers
    assert "The hub does not know you, or not any more." in answer.text


def test_who_may_not_use_the_page_is_told_so(page):
    token = page.hub.knows("stranger1")
    page.hub.models[token]["scopes"] = ["custom:jgpu:admin"]  # but not access to the service
    answer = page.get("", token)
    assert answer.status == 403
    assert "The hub&#39;s administrator decides that." in answer.text
    assert found(answer.text) == set()


def test_a_person_who_is_not_logged_in_is_sent_to_the_hub_once(page):
    answer = page.request("GET", "", Accept="text/html")
    assert answer.status == 302
    assert answer.headers["Location"].startswith("/lab/hub/api/oauth2/authorize?client_id=")
    for headers in ({"Accept": "*/*"}, {"HX_Request": "true"}, {"Sec_Fetch_Mode": "cors"}):
        assert page.request("GET", "", **headers).status == 403


def test_a_hub_that_does_not_answer_is_named(page):
    page.hub.trouble = 503
    try:
        answer = page.get("", "reader1")
        assert answer.status == 503
        assert "The hub does not answer" in answer.text
        assert "Notebooks and their cells run on." in answer.text
        assert found(answer.text) == set()
    finally:
        page.hub.trouble = 0


def test_a_stream_ends_with_the_right_to_it(page):
    token = page.hub.knows("reader4", "custom:jgpu:read")
    events = page.stream(token)
    events.until('id="memory"')
    del page.hub.models[token]
    while events.next() is not None:
        pass
    events.close()


def test_a_stream_outlives_the_hub_and_says_that_it_is_gone(page):
    events = page.stream("reader1")
    events.until('id="memory"')
    page.hub.trouble = 503
    try:
        assert "The hub does not answer" in events.until("The hub does not answer")
    finally:
        page.hub.trouble = 0
    while (event := events.next()) != ("problem", '""'):
        assert event is not None
    events.close()


def test_a_visitor_has_a_bounded_number_of_streams(page):
    with contextlib.ExitStack() as opened:

        def status(who):
            events = page.stream(who)
            opened.callback(events.close)
            return events.status

        assert [status("gamma3") for _ in range(9)] == [200] * 8 + [429]
        assert status("beta2") == 200
    until(lambda: status_once(page, "gamma3") == 200)


def status_once(page, who):
    events = page.stream(who)
    events.close()
    return events.status


# -- what goes with every answer ---------------------------------------------------------------


def test_nothing_comes_from_elsewhere(page):
    answer = page.get("", "reader1")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "://" not in answer.text.replace("http://www.w3.org", "")
    assert answer.headers["Cache-Control"] == "no-store"


def test_everybody_has_the_same_views(page):
    for who in ("alpha1", "tutor1", "reader1", "admin1"):
        for path in ("", "people", "usage", "usage.csv", "usage?by=group", "events", "people.csv"):
            answer = page.get(path, who)
            assert answer.status == 200
            if who == "alpha1":
                assert found(answer.text) <= {"alpha1"}
    assert page.get("usage?days=many", "alpha1").status == 400
    assert page.get("events?before=x", "alpha1").status == 400


def test_what_is_not_there_is_said_to_those_whom_the_hub_knows(page):
    assert page.get("nothing", "alpha1").status == 404
    assert page.get("nothing", "token-of-nobody").status == 403
