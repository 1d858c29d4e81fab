"""Receive the envelopes of Sentry's SDK on the loopback, and parse their items."""

import gzip
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers.serving import serving


class EnvelopeReceiver(ThreadingHTTPServer):
    """An endpoint for the envelopes of one project."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_address[1]}/42"

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Return the items of one type: ``event``, ``transaction``, ``check_in``."""
        return [item for body in self.bodies for header, item in _items(body) if header == kind]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of errors."""
        return self.items("event")


class _Handler(BaseHTTPRequestHandler):
    server: EnvelopeReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def _items(body: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield type and content of each item: a line of JSON with its length, then so many bytes (Sentry's format)."""
    _, _, rest = body.partition(b"\n")
    while rest:
        line, _, rest = rest.partition(b"\n")
        if not line:
            continue
        header = json.loads(line)
        size = header.get("length", rest.find(b"\n"))
        content, rest = rest[:size], rest[size + 1 :]
        if header["type"] in ("event", "transaction", "check_in"):
            yield header["type"], json.loads(content)


def envelope_receiver() -> AbstractContextManager[EnvelopeReceiver]:
    """Run a receiver."""
    return serving(EnvelopeReceiver())
