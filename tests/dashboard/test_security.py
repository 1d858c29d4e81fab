"""The checks before a page sees a request: the host, and the site and token of a change."""

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient

from framework.dashboard import Caller, app
from framework.dashboard.security import HEADERS, check_change, is_loopback_host

TOKEN = "t" * 40


def change(form_token=TOKEN, **headers):
    given = {"host": "localhost:7433", "cookie": f"aw_token={TOKEN}", **headers}
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value is not None]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": pairs, "scheme": "http"}
    request = Request({**scope, "server": ("localhost", 7433)})
    check_change(request, {"token": [form_token]} if form_token is not None else {})


def test_change_of_an_own_page_is_allowed():
    change(sec_fetch_site="same-origin", origin="http://localhost:7433")
    change(origin="http://localhost:7433")
    change()


def test_own_forms_have_their_origin():
    # Under this policy a browser sends "Origin: null" with each form.
    assert HEADERS["Referrer-Policy"] != "no-referrer"


@pytest.mark.parametrize(
    "wrong",
    [
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"form_token": "x" * 40},
        {"form_token": ""},
        {"form_token": None},
        {"form_token": "", "cookie": "aw_token="},
        {"cookie": None},
    ],
)
def test_change_of_another_site_is_refused(wrong):
    with pytest.raises(HTTPException) as refused:
        change(**wrong)
    assert refused.value.status_code == 403


def test_loopback_hosts_are_names_of_this_machine():
    for host in ("localhost", "localhost:7433", "127.0.0.1:80", "[::1]:7433", "[::1]", "LOCALHOST"):
        assert is_loopback_host(host)
    for host in (
        "",
        "evil.example",
        "evil.example:7433",
        "localhost.evil.example",
        "127.0.0.1.evil:80",
        "localhost:x",
        "0.0.0.0",
    ):
        assert not is_loopback_host(host)


def test_dashboard_on_loopback_refuses_other_hosts(shards):
    client = TestClient(app(lambda _: Caller("ann", "admin"), loopback_only=True), base_url="http://localhost")
    assert client.get("/api/queues").status_code == 200
    answer = client.get("/api/queues", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "default-src" in answer.headers["content-security-policy"]
