"""The command ``dashboard``: where it serves without ``--authorize``, how it starts, and how it ends."""

import asyncio
import signal
from contextlib import closing
from http.client import HTTPConnection

import pytest

from framework.dashboard.application import before
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


HANGS_AT_EXIT = """
import atexit, threading
from framework.dashboard import Caller
atexit.register(threading.Event().wait)
def authorize(request):
    return Caller("ann", "read")
"""


def test_dashboard_answers_and_ends_with_an_open_stream(site, free_tcp_port):
    # The end waits for no handler of the interpreter's exit, which takes Python seconds in a large application.
    (site.folder / "hangs.py").write_text(HANGS_AT_EXIT)
    listen = ("--listen", f"127.0.0.1:{free_tcp_port}", "--authorize", "hangs:authorize")
    process = site.start("-m", "framework", "dashboard", *listen)
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


def test_stream_ends_while_it_reads_a_slow_shard():
    async def ended():
        ending, read = asyncio.Event(), asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(ending.set)
        return await before(ending, read), read.cancelled()

    assert asyncio.run(ended()) == (False, True)


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
