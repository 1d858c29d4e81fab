"""A real HTTP server whose paths answer in different ways, like systems of other companies."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

RAW = {
    "/broken": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "/nothing": b"",
    "/endless-head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "/half-head": b"HTTP/1.1 200 OK\r\nContent-",
    "/huge": b"HTTP/1.1 200 OK\r\n\r\n" + b"three megabytes, " * 180_000,
    "/lies": b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nshort",
    "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "/bad-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nZZ\r\n",
    "/interim": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    "/only-interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    "/redirect": b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n",
    "/gone": b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n",
    "/busy": b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n",
    "/down": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "/missing": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
}
HANGS = {
    "/silent": b"",
    "/hanging-text": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun",
    "/drip": b"HTTP/1.1 200 OK\r\n",
}
"""The part of the answer before the server keeps the connection without more."""


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """``url(path)`` is a URL on it, ``requests`` are the received ones."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[Request] = []
        self.released = threading.Event()

    def url(self, path: str = "/ok") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.path, headers, body))
        handler.close_connection = True
        if handler.path in HANGS:
            handler.wfile.write(HANGS[handler.path])
            while not self.released.wait(0.02):
                if handler.path == "/drip":
                    handler.wfile.write(b"x: y\r\n")
        else:
            handler.wfile.write(RAW.get(handler.path, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nthanks"))


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError):  # the caller has read enough
                receiver.answer(self)

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.shutdown()
            thread.join()
