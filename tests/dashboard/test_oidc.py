"""The example of docs/operate/dashboard.md with OpenID Connect, against a small provider on a real port."""

import base64
import hashlib
import importlib
import json
import secrets
import sys
import threading
import time
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.docs.test_examples import ROOT, blocks
from tests.harness import until

SITE = "https://jobs.example"
CLIENT = ("dashboard", "client-secret")


def encoded_part(value):
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


class Provider:
    """Sign in one user at once, as a provider does that knows the browser already."""

    def __init__(self, issuer):
        self.issuer = issuer
        self.groups = ["staff", "operators"]
        self.wrong = {}
        """Claims of the token that are others than they must be."""
        self.codes = {}
        self.ended = []

    def application(self):
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.describe),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
                Route("/end", self.end),
            ]
        )

    async def describe(self, request):
        paths = {"authorization_endpoint": "authorize", "token_endpoint": "token", "end_session_endpoint": "end"}
        return JSONResponse({"issuer": self.issuer, **{name: f"{self.issuer}/{path}" for name, path in paths.items()}})

    async def authorize(self, request):
        query = dict(request.query_params)
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT[0])
        assert query["redirect_uri"] == f"{SITE}/callback"
        assert (query["code_challenge_method"], "openid" in query["scope"].split()) == ("S256", True)
        code = secrets.token_urlsafe(8)
        self.codes[code] = query
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}")

    async def token(self, request):
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        # A code is good once.
        asked = self.codes.pop(form["code"], None)
        basic = base64.b64encode(":".join(CLIENT).encode()).decode()
        verified = encoded_part(hashlib.sha256(form["code_verifier"].encode()).digest())
        if (
            asked is None
            or request.headers.get("authorization") != f"Basic {basic}"
            or verified != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        claims = {
            "iss": self.issuer,
            "aud": CLIENT[0],
            "sub": "42",
            "email": "ann@example.org",
            "groups": self.groups,
            "nonce": asked["nonce"],
            "exp": time.time() + 60,
            **self.wrong,
        }
        parts = [encoded_part(json.dumps(one).encode()) for one in ({"alg": "RS256"}, claims)]
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": f"{'.'.join(parts)}.signature"})

    async def end(self, request):
        self.ended.append(dict(request.query_params))
        return PlainTextResponse("signed out")


@pytest.fixture
def provider(free_tcp_port):
    made = Provider(f"http://127.0.0.1:{free_tcp_port}")
    server = uvicorn.Server(uvicorn.Config(made.application(), port=free_tcp_port, log_level="error"))
    thread = threading.Thread(target=server.run, name="provider")
    thread.start()
    until(lambda: server.started, "the provider")
    yield made
    server.should_exit = True
    thread.join()


@pytest.fixture
def user(provider, shards, tmp_path, monkeypatch):
    """Return the browser of a user at the site of the example."""
    (block,) = [one for one in blocks(ROOT / "docs" / "operate" / "dashboard.md") if one.mark == "file=oidc_site.py"]
    (tmp_path / "oidc_site.py").write_text(block.text)
    for name, value in {
        "OIDC_ISSUER": provider.issuer,
        "OIDC_CLIENT_ID": CLIENT[0],
        "OIDC_CLIENT_SECRET": CLIENT[1],
        "SITE_URL": SITE,
        "SESSION_KEY": "key-of-a-test",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "oidc_site", raising=False)
    module = importlib.import_module("oidc_site")
    yield TestClient(module.site, base_url=SITE, follow_redirects=False)
    sys.modules.pop("oidc_site", None)


def at_provider(address):
    """Follow a redirect to the provider, as the browser does; return where it leads back to."""
    return httpx.get(address).headers.get("location", "")


def signed_in(user):
    begun = user.get("/login")
    assert begun.status_code == 307
    return user.get(at_provider(begun.headers["location"]).removeprefix(SITE))


def test_user_signs_in_acts_by_the_groups_and_signs_out(user, provider, redis):
    redis.sadd("queues", "default")
    assert user.get("/jobs/queues").status_code == 403
    answer = signed_in(user)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("__host-session=")
    assert {"secure", "httponly", "samesite=lax", "path=/"} <= {one.strip() for one in cookie.split(";")}
    page = user.get("/jobs/queues/default")
    assert "You are ann@example.org" in page.text
    form = {
        "token": user.cookies["__Host-aw_token"],
        "action": "pause",
        "reason": "x",
        "shard": "main",
        "confirmed": "yes",
    }
    done = user.post("/jobs/queues/default", data=form)
    assert done.status_code == 200, done.text
    assert redis.sismember("paused", "default")
    assert user.post("/jobs/queues/default", data={**form, "action": "clear"}).status_code == 403
    ended = user.get("/logout")
    at_provider(ended.headers["location"])
    assert provider.ended == [{"client_id": "dashboard", "post_logout_redirect_uri": f"{SITE}/login"}]
    assert user.get("/jobs/queues").status_code == 403


def test_session_ends_in_time_and_strangers_have_no_role(user, provider, time_machine):
    provider.groups = ["guests"]
    assert signed_in(user).status_code == 303
    assert user.get("/jobs/queues").status_code == 403
    provider.groups = ["staff"]
    assert signed_in(user).status_code == 303
    assert user.get("/jobs/queues").status_code == 200
    time_machine.move_to(time.time() + 8 * 3600 + 1, tick=True)
    assert user.get("/jobs/queues").status_code == 403


@pytest.mark.parametrize(
    "wrong",
    [{"aud": "another"}, {"aud": ["dashboard", "another"]}, {"iss": "https://evil"}, {"nonce": "x"}, {"exp": 1}],
)
def test_token_of_another_sign_in_is_refused(user, provider, wrong):
    provider.wrong = wrong
    assert signed_in(user).status_code == 403
    assert user.get("/jobs/queues").status_code == 403


def test_callback_that_was_not_begun_here_is_refused(user, provider):
    back = urlsplit(at_provider(user.get("/login").headers["location"]))
    stolen = parse_qs(back.query)["code"][0]
    assert user.get(f"/callback?code={stolen}&state=other").status_code == 403
    # The sign-in has ended with the wrong state, and its code was not used.
    assert user.get(f"/callback?{back.query}").status_code == 403
    assert stolen in provider.codes
    again = user.get("/login")
    answer = at_provider(again.headers["location"])
    assert user.get(answer.removeprefix(SITE)).status_code == 303
    assert user.get(answer.removeprefix(SITE)).status_code == 403
