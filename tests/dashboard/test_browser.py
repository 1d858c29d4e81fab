"""The command ``dashboard``, and its pages in a real browser: their scripts run, and nothing is refused by their own policy."""

import subprocess
import urllib.request
from urllib.error import URLError

import pytest

from framework.dashboard.server import is_loopback, serve
from tests.chromium import browser, browser_command
from tests.harness import encoded, until

__all__ = ["browser"]

ATTACK = "<img src=x onerror=document.title='attacked'>"


def test_pages_work_in_a_real_browser(browser, site, redis, tmp_path, free_tcp_port):
    redis.sadd("queues", ATTACK)
    redis.lpush(f"queue:{ATTACK}", encoded("Job", args=[ATTACK], queue=ATTACK))
    address = f"127.0.0.1:{free_tcp_port}"
    process = site.start("-m", "framework", "dashboard", "--listen", address, "--role", "operate")

    def answers():
        assert process.popen.poll() is None, process.output
        try:
            return urllib.request.urlopen(f"http://{address}/static/icon.svg", timeout=5).status == 200
        except URLError:
            return False

    until(answers, "an answer of the dashboard")
    flags = ["--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=20000", "--dump-dom"]
    # The overview asks for the causes with a second request, by htmx.
    done = subprocess.run(
        browser_command(browser, tmp_path, *flags, f"http://{address}/"),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "no running process serves the queue &lt;img" in done.stdout, done.stdout[-3000:]
    assert "attacked" not in done.stdout.partition("</title>")[0]
    assert "Content Security Policy" not in done.stderr
    assert "Uncaught" not in done.stderr
    assert process.end() == 0


@pytest.mark.parametrize("listen", ["0.0.0.0:7433", "[::]:7433", "192.168.0.1:80"])
def test_address_beyond_this_machine_needs_authorize(site, listen):
    done = site.run("-m", "framework", "dashboard", "--listen", listen)
    assert done.returncode == 2
    assert "--authorize" in done.stderr


def test_loopback_is_every_address_of_it():
    assert all(is_loopback(one) for one in ("127.0.0.1", "127.0.0.53", "::1", "[::1]", "localhost"))
    assert not any(is_loopback(one) for one in ("0.0.0.0", "::", "10.0.0.1", "example.org"))
    with pytest.raises(ValueError, match="authorize"):
        serve("example.org", 80, None, "read")
