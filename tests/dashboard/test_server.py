"""The command ``dashboard``: where it serves without ``--authorize``, how it starts, and how it ends."""

import asyncio
import signal
from contextlib import closing
from http.client import HTTPConnection

import pytest

from framework.dashboard.server import EndedRequests, is_loopback, serve
from tests.harness import until


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


def test_dashboard_answers_and_ends_with_an_open_stream(site, free_tcp_port):
    process = site.start("-m", "framework", "dashboard", "--listen", f"127.0.0.1:{free_tcp_port}", "--role", "read")
    until(lambda: "The dashboard is at http://127.0.0.1" in process.output or process.popen.poll(), "the address")
    with closing(HTTPConnection("127.0.0.1", free_tcp_port, timeout=60)) as stream:
        stream.request("GET", "/live/queues")
        with stream.getresponse() as answer:
            assert answer.status == 200
            assert answer.readline() == b": same\n"
            assert process.end(signal.SIGTERM) == 0
            # The stream was ended, not cut: reading it raises nothing.
            assert answer.read().strip(b"\n: same") == b""
    assert "ERROR" not in process.output
    assert "Traceback" not in process.output


@pytest.mark.parametrize("has_begun", [True, False])
def test_cancelled_request_ends_without_an_error(has_begun):
    sent, waits = [], asyncio.Event()

    async def application(_scope, _receive, send):
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waits.set()
        await asyncio.Event().wait()

    async def send(message):
        sent.append((message["type"], message.get("status")))

    async def cancelled():
        request = asyncio.create_task(EndedRequests(application)({"type": "http"}, None, send))
        await waits.wait()
        request.cancel()
        await request

    asyncio.run(cancelled())
    assert sent == [("http.response.start", 200 if has_begun else 503), ("http.response.body", None)]
