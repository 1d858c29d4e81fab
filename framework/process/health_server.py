"""Answer health checks over HTTP from threads of their own; what they ask is given as one function for each path."""

import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, NamedTuple, TypeAlias, cast

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.feature import features
from framework.process.worker_options import HealthAddress
from framework.settings.base import SettingsBase
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.shared_counts import GroupCounts
from framework.wire.json import dumps

_DEADLINE_S = 3.0
# The period of the check for overdue requests.
_CHECK_PERIOD_S = 1.0
_MOST_REQUESTS, _MOST_OF_AN_ADDRESS = 64, 16
_NETWORK_BITS = 64


class HealthAnswer(NamedTuple):
    """The answer to one request: ``well`` gives status 200, otherwise 503."""

    well: bool
    body: bytes
    content_type: str = "application/json"


def json_answer(shown: Mapping[str, Any], *, well: bool) -> HealthAnswer:
    """Return an answer in JSON."""
    return HealthAnswer(well, dumps(shown) + b"\n")


Answer: TypeAlias = Callable[[str], HealthAnswer]
"""Answers a request with this header ``Accept``."""


class Served(NamedTuple):
    """What a health server answers for: this process, or a group of processes with these counts."""

    settings: SettingsBase
    counts: GroupCounts | None = None


def feature_answers(served: Served) -> dict[str, Answer]:
    """Return the answers of features, by path."""
    parts: list[Callable[[Served], Mapping[str, Answer]]] = [
        one.answers.load() for one in features() if one.answers is not None
    ]
    return {path: answer for part in parts for path, answer in part(served).items()}


class _Request(NamedTuple):
    source: str
    deadline: float


class HealthServer(ThreadingHTTPServer):
    """Answer the paths of ``answers`` from its own threads: 200, or 503 for an answer that is not well.

    A request has a total deadline, and the number of open requests is limited. One request too many replaces the oldest request
    of its address, or of the address with the most: silent connections cannot block a probe.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answers: Mapping[str, Answer], address: HealthAddress) -> None:
        """Listen, at ``::`` for IPv4 too. Raises ConfigurationError when the server cannot listen."""
        host, port, source = address
        self.answers = answers
        self._open: dict[Any, _Request] = {}
        try:
            self.address_family, resolved = _resolved(host, port)
            super().__init__(resolved, _Handler)
        except OSError as error:
            place = f"{f'[{host}]' if ':' in host else host}:{port}"
            raise ConfigurationError(
                [
                    ConfigurationProblem(
                        source,
                        "",
                        f"cannot listen at {place} ({error}): choose a free port, or stop the process that uses it",
                    )
                ]
            ) from error

    def answer(self, target: str, accept: str = "") -> HealthAnswer | None:
        """Return the answer to a path with its query, which health checks ignore; ``None`` for an unknown path."""
        found = self.answers.get(target.partition("?")[0])
        return None if found is None else found(accept)

    def server_bind(self) -> None:
        """Bind; ``::`` is every address of this host, of both families."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(self.server_address[0] != "::"))
        super().server_bind()

    def start(self) -> None:
        """Log the address and start to answer requests."""
        host, port = self.server_address[:2]
        logs.logger().info("the health server listens", event_name="health.listening", host=host, port=port)
        SupervisedThread("health", self.serve_forever, _CHECK_PERIOD_S).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a request, if necessary in place of an older open one."""
        source = _source(client_address[0])
        surplus = self._connection_to_close(source)
        if surplus is not None:
            self._open.pop(surplus, None)
            _close_connection(surplus)
        self._open[request] = _Request(source, time.monotonic() + _DEADLINE_S)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Remove an ended request."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close overdue requests; the library calls it periodically."""
        now = time.monotonic()
        for request, (_, deadline) in self._open.copy().items():
            if now > deadline:
                _close_connection(request)

    def _connection_to_close(self, source: str) -> Any:
        """Return the connection to close for one more of ``source``, or ``None`` below the limits."""
        # Oldest first.
        opened = self._open.copy()
        counts = Counter(one.source for one in opened.values())
        if counts[source] < _MOST_OF_AN_ADDRESS:
            if len(opened) < _MOST_REQUESTS:
                return None
            source = counts.most_common(1)[0][0]
        return next(request for request, one in opened.items() if one.source == source)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the signature of the library
        """Log an error of the framework; connection errors are the client's."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            logs.logger().error(
                "the health server could not answer a request; look at the error",
                event_name="health.failed",
                error=error,
            )


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return the family and the address to listen at. Raises OSError for a name without an address."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, address


def _source(host: str) -> str:
    """Return the key of the request limit: the address, or the network of an IPv6 address, as one host may have all of it."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((int(address), _NETWORK_BITS), strict=False))


def _close_connection(request: socket.socket) -> None:
    """Shut a connection down; the thread that serves it then closes it."""
    # The connection has just ended.
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    timeout = _DEADLINE_S

    def do_GET(self) -> None:
        """Answer a health check."""
        server = cast("HealthServer", self.server)
        found = server.answer(self.path, self.headers.get("Accept", ""))
        if found is None:
            self._reply(HTTPStatus.NOT_FOUND, json_answer({"paths": list(server.answers)}, well=False))
            return
        self._reply(HTTPStatus.OK if found.well else HTTPStatus.SERVICE_UNAVAILABLE, found)

    def do_HEAD(self) -> None:
        """Answer with the status only."""
        self.do_GET()

    def _reply(self, status: HTTPStatus, answer: HealthAnswer) -> None:
        self.send_response(status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def version_string(self) -> str:
        """Return the server's name without a version."""
        return "application-worker"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the library
        """Log nothing, because the platform asks every few seconds."""
