"""What visitors may do: their rights are checked for each request, and a no changes nothing."""

import json
import re
import socket
from urllib.parse import urlencode

import pytest
from page_parts import PREFIX, USERS, cookie_of
from real_broker import until

from jgpu.wire.messages import AskEvents, AskQuotas, AskStatus, Drain, SetQuota, UsePolicy
from jgpu.wire.reports.records import decode_events
from jgpu.wire.reports.report import decode, decode_quotas

FORM = {"weight": "", "was_weight": ""}


def post(page, who, path, form, **headers):
    body = urlencode(form, doseq=True)
    return page.request("POST", path, page.tokens.get(who, who), body, **headers)


def report(page):
    return decode(page.ask(AskStatus()).json)


def quotas(page):
    return decode_quotas(page.ask(AskQuotas()).json)


def said(page, scope):
    """What is set of a scope while the broker runs."""
    rows = [row for row in quotas(page).scopes if row.scope == scope and row.source == "live"]
    return dict(rows[0].settings) if rows else {}


def session_of(page, user):
    return next(row.id for row in report(page).sessions if row.user == user)


@pytest.fixture(autouse=True)
def nothing_is_set(page):
    yield
    for row in quotas(page).scopes:
        if row.source == "live":
            page.ask(SetQuota(row.scope, ()))


# -- quotas ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "scope", "allowed"),
    [
        ("admin1", "user:alpha1", True),
        ("admin1", "group:class2", True),
        ("admin1", "default", True),
        ("tutor1", "user:alpha1", True),
        ("tutor1", "group:class1", True),
        ("tutor1", "user:gamma3", False),
        ("tutor1", "group:class2", False),
        ("tutor1", "default", False),
        ("reader1", "user:alpha1", False),
        ("alpha1", "user:alpha1", False),
        ("alpha1", "group:class1", False),
    ],
)
def test_who_sets_what_of_whom(page, who, scope, allowed):
    answer = post(page, who, "quotas", {"scope": scope, "weight": "2"})
    assert answer.status == (303 if allowed else 403)
    assert said(page, scope) == ({"weight": 2.0} if allowed else {})
    form = page.get(f"people/edit?{urlencode({'scope': scope})}", who)
    assert form.status == (200 if allowed else 403)


def test_a_setting_counts_at_once_and_until_its_end(page):
    form = {"scope": "user:alpha1", "memory": "4G", "until": "2h"}
    assert post(page, "admin1", "quotas", form).status == 303
    (row,) = (row for row in quotas(page).scopes if row.scope == "user:alpha1")
    assert row.settings == {"memory": 4 << 30}
    assert row.until == pytest.approx(report(page).broker.started + 7200, abs=300)
    assert "of</span>" not in page.get("people", "alpha1").text
    assert "4 GiB" in page.get("people", "alpha1").text
    assert 'value="4G"' in page.get("people/edit?scope=user%3Aalpha1", "admin1").text


def test_only_what_is_different_is_set_and_all_of_it_can_be_taken_out(page):
    page.ask(SetQuota("user:alpha1", (("weight", "2"), ("sessions", "5"))))
    form = {"scope": "user:alpha1", "weight": "2", "was_weight": "2", "sessions": "7",
            "was_sessions": "5"}  # fmt: skip
    assert post(page, "admin1", "quotas", form).status == 303
    assert said(page, "user:alpha1") == {"weight": 2.0, "sessions": 7}
    form = {"scope": "user:alpha1", "was_weight": "2"}
    assert post(page, "admin1", "quotas", form).status == 303
    assert said(page, "user:alpha1") == {"sessions": 7}
    assert post(page, "admin1", "quotas", {"scope": "user:alpha1"}).status == 400
    assert post(page, "admin1", "quotas", {"scope": "user:alpha1", "clear": "1"}).status == 303
    assert said(page, "user:alpha1") == {}


def test_several_are_set_alike_or_none_of_them(page):
    scopes = [f"user:{user}" for user in USERS]
    assert post(page, "admin1", "quotas", {"scope": scopes, "sessions": "3"}).status == 303
    assert [said(page, scope) for scope in scopes] == [{"sessions": 3}] * 3
    answer = post(page, "tutor1", "quotas", {"scope": scopes, "sessions": "4"})
    assert (answer.status, "user:gamma3 is not of your groups" in answer.text) == (403, True)
    answer = post(page, "admin1", "quotas", {"scope": [*scopes, "user:nobody9"], "sessions": "4"})
    assert answer.status == 409
    assert [said(page, scope) for scope in scopes] == [{"sessions": 3}] * 3


@pytest.mark.parametrize(
    ("form", "status", "sentence"),
    [
        ({"scope": "user:alpha1", "memory": "much"}, 409, "is no size"),
        ({"scope": "user:nobody9", "weight": "2"}, 409, "There is no user"),
        ({"scope": "group:nothing9", "weight": "2"}, 409, "There is no group"),
        ({"scope": "all", "weight": "2"}, 409, "is no scope"),
        ({"scope": "user:alpha1", "weight": "2", "until": "soon"}, 400, "is no time"),
        ({"weight": "2"}, 400, "Nobody is chosen."),
    ],
)
def test_bad_input_is_a_sentence_and_changes_nothing(page, form, status, sentence):
    before = quotas(page).scopes
    answer = post(page, "admin1", "quotas", form)
    assert (answer.status, sentence in answer.text) == (status, True)
    fragment = post(page, "admin1", "quotas", form, HX_Request="true")
    assert fragment.headers["HX-Retarget"] == "#told"
    assert sentence in fragment.text
    assert quotas(page).scopes == before


def test_a_limit_below_what_is_there_is_said(page):
    form = {"scope": "user:alpha1", "memory": "100M"}
    answer = post(page, "admin1", "quotas", form, HX_Request="true")
    assert answer.status == 200
    assert "128 MiB, 28 MiB more than the 100 MiB that alpha1 may have" in answer.text


# -- class lists -------------------------------------------------------------------------------


def upload(page, who, text, **fields):
    parts = [("list", '; filename="class.csv"', text), *((k, "", v) for k, v in fields.items())]
    body = "".join(
        f'--here\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'
        for name, more, value in parts
    )
    kind = "multipart/form-data; boundary=here"
    token = page.tokens[who]
    return page.request("POST", "people.csv", token, body + "--here--\r\n", Content_Type=kind)


def test_a_class_list_goes_out_and_in(page):
    page.ask(SetQuota("user:alpha1", (("weight", "2"),)))
    text = page.get("people.csv", "tutor1").text
    assert [line.split(",")[0] for line in text.splitlines()] == ["user", "alpha1", "beta2"]
    changed = text.replace("beta2,", "beta2,3", 1)
    assert upload(page, "tutor1", changed).status == 303
    assert (said(page, "user:alpha1"), said(page, "user:beta2")) == ({"weight": 2}, {"weight": 3})


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("user,weight,memory\nalpha1,2,4G\nbeta2,2,much\n", "Line 3, column memory: memory"),
        ("user,weight\nalpha1,2\nnobody9,2\n", "Line 3, column user: There is no user"),
        ("user,weight\nalpha1,2\nbeta2\x00,2\n", "Line 3, column user"),
        ("user,memory,resident\nalpha1,4G,1G\nbeta2,1G,2G\n", "Line 3, column"),
    ],
)
def test_an_error_in_a_list_is_told_by_line_and_column_and_nothing_is_set(page, text, place):
    answer = upload(page, "admin1", text)
    assert answer.status == 400
    assert place in answer.text
    assert "Nothing was changed." in answer.text
    assert said(page, "user:alpha1") == {}


def test_a_list_is_read_only_from_those_who_may_set_anything(page):
    """A list of ten megabytes would hold up the page for everybody."""
    for who in ("alpha1", "reader1"):
        answer = upload(page, who, "no list at all")
        assert (answer.status, "You may not set" in answer.text) == (403, True)


def test_a_list_that_is_too_large_is_refused_by_its_size(page):
    answer = upload(page, "admin1", "user,weight\n" + "," * (4 << 20))
    assert (answer.status, "at most 4 MiB" in answer.text) == (413, True)


def test_a_request_that_is_larger_than_any_is_not_even_heard_out(page):
    with socket.create_connection(("127.0.0.1", page.port), 20) as stranger:
        head = f"POST {PREFIX}quotas HTTP/1.1\r\nHost: page\r\nContent-Length: {17 << 20}\r\n\r\n"
        stranger.sendall(head.encode())
        assert stranger.recv(1000).startswith(b"HTTP/1.1 400")


def test_names_of_a_list_may_be_new(page):
    assert upload(page, "admin1", "user,weight\nnewcomer1,2\n", new="1").status == 303
    assert said(page, "user:newcomer1") == {"weight": 2}


def test_a_list_reaches_no_further_than_its_sender(page):
    answer = upload(page, "tutor1", "user,weight\nalpha1,2\ngamma3,2\n")
    assert answer.status == 403
    assert said(page, "user:alpha1") == {}
    assert upload(page, "alpha1", "user,weight\nalpha1,2\n").status == 403


# -- memory, policy, drain ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "user", "allowed"),
    [
        ("alpha1", "alpha1", True),
        ("alpha1", "beta2", False),
        ("tutor1", "beta2", True),
        ("tutor1", "gamma3", False),
        ("reader1", "gamma3", False),
        ("admin1", "gamma3", True),
    ],
)
def test_who_frees_whose_memory(page, who, user, allowed):
    path = f"sessions/{session_of(page, user)}/free"
    assert page.get(path, who).status == 405
    answer = post(page, who, path, {"ephemeral": "1"}, HX_Request="true")
    assert answer.status == (200 if allowed else 403)
    assert ("goes to the host" in answer.text) == allowed
    assert (f"/{path}" in page.get("", who).text) == allowed


def test_a_session_that_is_gone_is_said(page):
    assert post(page, "admin1", "sessions/999999/free", {"a": "b"}).status == 404


def test_only_administrators_choose_the_policy_and_drain(page):
    for path, form in (("policy", {"policy": "las"}), ("drain", {"on": "1"})):
        for who in ("tutor1", "reader1", "alpha1"):
            assert post(page, who, path, form).status == 403
    assert report(page).devices[0].policy == "fair"
    assert post(page, "admin1", "policy", {"policy": "las"}).status == 303
    until(lambda: report(page).devices[0].policy == "las")
    page.ask(UsePolicy("fair"))
    assert post(page, "admin1", "policy", {"policy": "nothing"}).status == 409


def test_draining_is_told_to_everybody(page):
    assert report(page).broker.drain == ""
    assert post(page, "admin1", "drain", {"on": "1"}).status == 303
    until(lambda: "Drained." in page.get("", "alpha1").text)
    assert "Lost would be what 3 sessions keep" in page.get("", "admin1").text
    assert "Lost would be" not in page.get("", "alpha1").text
    page.ask(Drain(on=False))
    until(lambda: "Drained." not in page.get("", "alpha1").text)


def test_what_was_done_is_on_record_under_the_visitors_name(page):
    post(page, "tutor1", "quotas", {"scope": "user:beta2", "weight": "2"})
    (event, *_) = decode_events(page.ask(AskEvents(limit=1)).json).events
    assert (event.kind, event.who, event.about) == ("quota", "tutor1", "beta2")
    assert "weight=2" in page.get("events", "admin1").text
    seen = page.get("events", "beta2").text
    assert "quota" in seen
    assert "tutor1" not in seen
    assert "weight=2" not in seen


# -- forged requests ---------------------------------------------------------------------------


def test_a_form_of_another_site_changes_nothing(page):
    """The visitor's browser sends their cookie along; the proof it cannot know."""
    name, cookie = cookie_of(page.tokens["admin1"])
    seen = page.request("GET", "", Cookie=f"{name}={cookie}", Accept="text/html")
    assert seen.status == 200
    proof = re.search(r"_xsrf=([^;]+)", str(seen.headers)).group(1)
    shown = json.loads(re.search(r"hx-headers:inherited='([^']+)'", seen.text).group(1))
    assert shown["X-XSRFToken"] == proof
    form = {"scope": "user:alpha1", "weight": "2"}
    cookies = f"{name}={cookie}; _xsrf={proof}"
    for headers in ({}, {"X_XSRFToken": "guessed"}, {"Referer": f"http://127.0.0.1{PREFIX}"}):
        body = urlencode(form)
        assert page.request("POST", "quotas", "", body, Cookie=cookies, **headers).status == 403
    assert said(page, "user:alpha1") == {}
    body = urlencode(form | {"_xsrf": proof})
    assert page.request("POST", "quotas", "", body, Cookie=cookies).status == 303
    assert said(page, "user:alpha1") == {"weight": 2}


@pytest.mark.parametrize("path", ["quotas", "policy", "drain"])
def test_no_address_changes_anything_by_being_looked_at(page, path):
    query = "?scope=user%3Aalpha1&weight=2&policy=las&on=1"
    assert page.get(path + query, "admin1").status == 405
    assert said(page, "user:alpha1") == {}


def test_a_token_that_was_revoked_does_nothing(page):
    token = page.hub.knows("admin9", "custom:jgpu:admin")
    del page.hub.models[token]
    answer = post(page, token, "quotas", {"scope": "user:alpha1", "weight": "2"})
    assert answer.status == 403
    assert said(page, "user:alpha1") == {}
