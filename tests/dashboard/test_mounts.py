"""The examples of docs/operate/dashboard.md with web frameworks: each is started, and asked for a page, an action and its stream."""

import re
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from importlib.util import find_spec
from urllib.parse import urlencode

import pytest

from tests.dashboard.test_api_properties import ask_schema
from tests.docs.test_examples import ROOT, blocks
from tests.harness import encoded, until
from tests.process.conftest import cold_site

__all__ = ["cold_site"]

PROJECT_SETTINGS = """
SECRET_KEY, ALLOWED_HOSTS, ROOT_URLCONF = "of-a-test", ["127.0.0.1"], "project_settings"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages", "django.contrib.admin"]
urlpatterns = []
"""

# One process for all: its imports take longer than all else.
SERVERS = """
import asyncio, sys, threading, framework
print(f"the framework is in {framework.__file__}", file=sys.stderr, flush=True)
from wsgiref.simple_server import WSGIServer, make_server
from socketserver import ThreadingMixIn
import uvicorn
sys.path.insert(0, ".")
names, ports = sys.argv[1].split(","), [int(one) for one in sys.argv[2].split(",")]
sites = {name: __import__(f"{name}_site").site for name in names}
class Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True
async def serve():
    servers = []
    for name, port in zip(names, ports):
        if name == "flask":
            made = make_server("127.0.0.1", port, sites[name], server_class=Threaded)
            threading.Thread(target=made.serve_forever, daemon=True).start()
        else:
            servers.append(uvicorn.Server(uvicorn.Config(sites[name], host="127.0.0.1", port=port, log_level="error")))
    await asyncio.gather(*(one.serve() for one in servers))
asyncio.run(serve())
"""

FRAMEWORKS = [one for one in ("fastapi", "starlette", "django", "flask") if find_spec(one)]
OPERATOR = {"X-Auth-Request-User": "ann", "X-Auth-Request-Groups": "staff,operators"}
READER = {"X-Auth-Request-User": "bob", "X-Auth-Request-Groups": "staff"}


def ask(port, method, path, body=None, **headers):
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def first_event(port, path):
    """Return the status and the first line of a stream, which goes on."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path, headers=OPERATOR)
        with connection.getresponse() as answer:
            return answer.status, answer.readline()


def answers(port):
    try:
        return ask(port, "GET", "/jobs/api/queues", **OPERATOR)[0] == 200
    except OSError:
        return False


def test_mounted_dashboards_show_act_and_stream(site, redis, free_tcp_port_factory):
    ports, _ = serve_all(site, free_tcp_port_factory)
    for name, port in ports.items():
        check(name, port, redis)
    if "django" in ports:
        assert ask(ports["django"], "GET", "/nothing", **OPERATOR)[0] == 404
    if "flask" not in ports:
        pytest.skip("flask or a2wsgi is not installed: run scripts/setup")


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_mounted_dashboards_from_a_wheel_show_act_and_stream(cold_site, redis, free_tcp_port_factory, tmp_path):
    """Outside of the checkout; and their APIs answer as they are described."""
    import schemathesis

    hatchling = pytest.importorskip("hatchling.build", reason="the build backend comes with scripts/setup")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        wheel = tmp_path / hatchling.build_wheel(str(tmp_path))
    installed = tmp_path / "installed"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        installed,
        wheel,
    ]
    subprocess.run(install, check=True)
    ports, process = serve_all(cold_site, free_tcp_port_factory, PYTHONPATH=str(installed))
    assert f"the framework is in {installed}" in process.output
    for name, port in ports.items():
        check(name, port, redis)
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/jobs/api/openapi.json", headers=OPERATOR)
        assert ask_schema(schema, lambda path: int(path != "/api/job/{jid}"), headers=OPERATOR) > 30


def serve_all(site, free_tcp_port_factory, **env):
    """Serve the site of each framework; return the ports by name, and the process."""
    names = [one for one in FRAMEWORKS if one != "flask" or find_spec("a2wsgi")]
    page = ROOT / "docs" / "operate" / "dashboard.md"
    for block in blocks(page):
        if block.mark.startswith("file="):
            (site.folder / block.mark.removeprefix("file=")).write_text(block.text)
    (site.folder / "project_settings.py").write_text(PROJECT_SETTINGS)
    # Named as the command that has its rights.
    (site.folder / "dashboard").write_text(SERVERS)
    ports = {name: free_tcp_port_factory() for name in names}
    process = site.start("dashboard", ",".join(names), ",".join(map(str, ports.values())), **env)
    for name, port in ports.items():
        until(lambda port=port: answers(port) or process.popen.poll() is not None, f"{name}: {process.output}")
    return ports, process


def check(name, port, redis):
    """See a page, its refusals, an action, and its stream, of one site."""
    redis.sadd("queues", "default")
    redis.lpush("queue:default", encoded("Job"))
    assert ask(port, "GET", "/jobs/queues")[0] == 403, name
    assert ask(port, "GET", "/jobs/static/dashboard.css")[0] == 200, name
    status, headers, html = ask(port, "GET", "/jobs/queues/default", **OPERATOR)
    assert (status, "/jobs/static/dashboard.js" in html) == (200, True), name
    # The token of the page's form, and its cookie.
    cookie = headers["set-cookie"].partition(";")[0]
    token = re.search(r'name="token" value="([^"]+)"', html)[1]
    form = {"token": token, "action": "pause", "reason": name, "confirmed": "yes", "shard": "main", "minutes": "5"}
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
    change = urlencode(form)
    for refused in ({**sent, **READER}, {**sent, **OPERATOR, "Cookie": "aw_token=" + "x" * 43}):
        assert ask(port, "POST", "/jobs/queues/default", change, **refused)[0] == 403, name
        assert not redis.sismember("paused", "default")
    status, _, done = ask(port, "POST", "/jobs/queues/default", change, **sent, **OPERATOR)
    assert (status, redis.sismember("paused", "default")) == (200, 1), f"{name}: {done}"
    redis.srem("paused", "default")
    status, line = first_event(port, "/jobs/live/queues/default")
    # Under WSGI the page asks from time to time instead: its part says when.
    assert (status, line) == ((501, line) if name == "flask" else (200, b": same\n")), name
    again = ask(port, "GET", "/jobs/queues/default", **OPERATOR, **{"HX-Request": "true"})[2]
    assert re.search(r'id="again" hidden data-ms="\d+"', again), name
