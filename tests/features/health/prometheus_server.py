"""A server with the query API of Prometheus; the query chooses the answer: ``vector 1 NaN``, ``drip``, ``500``."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class PrometheusServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.over = threading.Event()
        self.asked: list[str] = []
        self.authorization: list[str | None] = []
        self.answers: dict[str, str] = {}
        """The answer to each query; a test may change it at any time."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/prefix"


class _Handler(BaseHTTPRequestHandler):
    server: PrometheusServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        (query,) = parse_qs(parts.query)["query"]
        self.server.asked.append(query)
        self.server.authorization.append(self.headers["Authorization"])
        if parts.path != "/prefix/api/v1/query":
            self.send_error(404)
            return
        kind, *values = self.server.answers.get(query, query).split()
        with suppress(OSError):
            getattr(self, f"_{kind}", self._text)(*values)

    def log_message(self, *_: Any) -> None:
        pass

    def _say(self, body: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def _answer(self, kind: str, result: Any) -> None:
        self._say(json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}))

    def _vector(self, *values: str) -> None:
        self._answer("vector", [{"metric": {"n": str(n)}, "value": [1.5e9, value]} for n, value in enumerate(values)])

    def _scalar(self, value: str) -> None:
        self._answer("scalar", [1.5e9, value])

    def _matrix(self) -> None:
        self._answer("matrix", [{"metric": {}, "values": [[1.5e9, "1"]]}])

    def _chunked(self, value: str) -> None:
        body = json.dumps({"status": "success", "data": {"resultType": "scalar", "result": [1.5e9, value]}}).encode()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(body), 7):
            piece = body[at : at + 7]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _status(self, number: str) -> None:
        self._say('{"status":"error","error":"too many samples"}', int(number))

    def _raw(self, *words: str) -> None:
        self._say(" ".join(words))

    def _deep(self) -> None:
        self._say("[" * 100_000)

    def _silent(self) -> None:
        self.server.over.wait(30)

    def _drip(self) -> None:
        """Return endless header lines."""
        while not self.server.over.wait(0.02):
            self.wfile.write(b"X-More: 1\r\n")
            self.wfile.flush()

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.over.is_set():
            self.wfile.write(b" " * 65536)

    def _cut(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    def _noise(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH\r\n")

    def _text(self, *_: str) -> None:
        self._say("<html>")


@contextmanager
def prometheus_server() -> Iterator[PrometheusServer]:
    server = PrometheusServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
