"""Check requests to URLs of users, on a real server: silence, endless answers, false answers, and forbidden addresses."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from demo.receiver import Receiver
from tests.tables import each_row
from workers.webhooks import http_post
from workers.webhooks.addresses import ALLOWED_VARIABLE, AddressRefusedError, checked_addresses
from workers.webhooks.http_post import MAX_EXCERPT_BYTES, Answer, NoAnswerError, post, url_problem

NOW = 1_790_000_000.0
SLACK_S = 5.0


def send(url: str, body: bytes = b"{}") -> Answer:
    return asyncio.run(post(url, body, {"webhook-id": "msg_1"}, now=NOW))


def test_post_sends_body_and_headers(receiver: Receiver) -> None:
    body = b"x" * 300_000
    assert send(receiver.url("/a b/ü?q=1 2"), body) == Answer(200, None, None, "thanks")
    (request,) = receiver.requests
    assert (request.path, request.body) == ("/a%20b/%C3%BC?q=1%202", body)
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "content-type": "application/json",
        "content-length": "300000",
        "connection": "close",
        "webhook-id": "msg_1",
    }


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/huge", Answer(200, None, None, ("three megabytes, " * 300)[:MAX_EXCERPT_BYTES])),
        ("/lies", Answer(200, None, None, "short")),
        ("/chunked", Answer(200, None, None, "abcde")),
        ("/bad-chunks", Answer(200, None, None, "abc")),
        ("/interim", Answer(204, None, None, "")),
        ("/redirect", Answer(302, None, "http://169.254.169.254/latest", "")),
        ("/busy", Answer(429, 7.0, None, "")),
    ],
)
def test_post_returns_the_answer(receiver: Receiver, path: str, answer: Answer) -> None:
    assert send(receiver.url(path)) == answer
    assert [request.path for request in receiver.requests] == [path]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/broken", "BadStatusLine: SSH"),
        ("/nothing", "IncompleteReadError"),
        ("/half-head", "IncompleteReadError"),
        ("/endless-head", "LimitOverrunError"),
        ("/only-interim", "only interim answers"),
    ],
)
def test_post_without_http_answer_is_refused(receiver: Receiver, path: str, message: str) -> None:
    with pytest.raises(NoAnswerError, match=message):
        send(receiver.url(path))


@pytest.mark.parametrize("path", ["/silent", "/drip"])
def test_post_deadline_holds_against_slow_bytes(receiver: Receiver, path: str, short_timeout: None) -> None:
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match=r"no answer within 0\.3 s"):
        send(receiver.url(path))
    assert time.monotonic() - began < 0.3 + SLACK_S


def test_post_does_not_wait_for_a_hanging_text(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_post, "EXCERPT_TIMEOUT_S", 0.1)
    assert send(receiver.url("/hanging-text")) == Answer(200, None, None, "begun")


def test_post_without_listener_is_no_answer(receiver: Receiver) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with pytest.raises(NoAnswerError, match="ConnectionRefusedError"):
            send(url)
    with pytest.raises(NoAnswerError, match="SSL"):
        send(receiver.url().replace("http:", "https:"))


@each_row(
    "host",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
        "255.255.255.255", "2130706433", "0x7f.1", "[::1]", "[::]", "[fe80::1]", "[fd00::1]", "[ff02::1]",
        "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "localhost",
    ],
)  # fmt: skip
def test_private_addresses_are_refused(receiver: Receiver, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOWED_VARIABLE, raising=False)
    with pytest.raises(AddressRefusedError, match="no public address"):
        send(f"http://{host}:{receiver.port}/ok")
    assert receiver.requests == []


@pytest.mark.parametrize("host", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_public_addresses_are_allowed(host: str) -> None:
    assert asyncio.run(checked_addresses(host, 443)) == [host]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[list[str]]], list[str]]:
    """Replace the name lookup: each lookup returns the next answer."""

    def serve(name: str, answers: list[list[str]]) -> list[str]:
        asked: list[str] = []
        real = socket.getaddrinfo

        def look_up(host, port, *rest, **options):
            if host != name:
                return real(host, port, *rest, **options)
            asked.append(name)
            addresses = answers[min(len(asked), len(answers)) - 1]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return asked

    return serve


def test_name_with_one_private_address_is_refused(receiver: Receiver, names) -> None:
    names("hook.example", [["93.184.215.14", "10.0.0.1"]])
    with pytest.raises(AddressRefusedError, match=r"hook\.example leads to 10\.0\.0\.1"):
        send("http://hook.example/")


def test_name_is_resolved_once(receiver: Receiver, names) -> None:
    """The second answer would lead elsewhere (DNS rebinding)."""
    asked = names("hook.example", [["127.0.0.1"], ["10.0.0.1"]])
    assert send(f"http://hook.example:{receiver.port}/ok").status == 200
    assert len(asked) == 1
    assert receiver.requests[0].headers["host"] == f"hook.example:{receiver.port}"


def test_name_without_address_is_no_answer(names) -> None:
    names("hook.example", [[]])
    with pytest.raises(NoAnswerError, match=r"OSError: hook\.example has no address"):
        send("http://hook.example/")


def test_post_tries_the_next_address(receiver: Receiver, names) -> None:
    names("hook.example", [["127.0.0.2", "127.0.0.1"]])
    assert send(f"http://hook.example:{receiver.port}/ok").status == 200


@each_row(
    ("url", "message"),
    [
        ("ftp://example.com/", "begins with http"),
        ("//example.com", "begins with http"),
        ("http:///path", "names a host"),
        ("https://example.com:99999/", "range"),
        ("http://a..b/", "label"),
        ("https://user:secret@example.com/", "no user and password"),
        ("https://example.com:8080/hook?x=1", None),
        ("http://[2606:2800::1]/", None),
    ],
)
def test_url_problem_is_found(url: str, message: str | None) -> None:
    problem = url_problem(url)
    assert problem is None if message is None else message in str(problem)


@each_row(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("0", 0.0),
        ("120", 120.0),
        ("Mon, 21 Sep 2026 14:14:40 GMT", 1_790_000_080.0 - NOW),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("9" * 400, float("inf")),
    ],
)
def test_retry_after_is_parsed(text: str | None, seconds: float | None) -> None:
    assert http_post._retry_after_s(text, NOW) == seconds
