"""Answer the health checks of a group over HTTP: restart it (liveness)? has it capacity (readiness)?

A live process is not enough: a child serves when Redis accepts its heartbeats and answers its fetches. The answers come from
memory, so a request sends no command to Redis.
"""

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, NamedTuple, TypeAlias, cast

from framework.cluster.child import Child
from framework.cluster.supervisor import Supervisor
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.telemetry import logs
from framework.timings import STANDARD, Timings
from framework.wire.json import dumps

_DEADLINE_S = 3.0
# The period of the check for overdue requests.
_CHECK_PERIOD_S = 1.0
_MOST_REQUESTS, _MOST_OF_AN_ADDRESS = 64, 16
_NETWORK_BITS = 64

HealthResult: TypeAlias = tuple[bool, dict[str, Any]]


def serves(child: Child, timings: Timings) -> bool:
    """Return whether a child fetches jobs: it reports so, and Redis has answered it recently."""
    now, state = time.monotonic(), child.shared_state
    return (
        child.ready
        and now - state.fetched_at <= timings.fetch_silence_limit_s
        and now - state.heartbeat_at <= timings.lease_s
    )


class GroupHealth:
    """Compute the answers. The supervisor's loop calls ``note_loop`` in each iteration."""

    def __init__(self, group: Supervisor, timings: Timings = STANDARD) -> None:
        self._group = group
        self._timings = timings
        self._loop_at = time.monotonic()

    def note_loop(self) -> None:
        """Record an iteration of the supervisor's loop."""
        self._loop_at = time.monotonic()

    def liveness(self) -> HealthResult:
        """Return whether a restart is not needed: the loop and at least half of the running children respond."""
        limits, loop_age_s = self._timings, time.monotonic() - self._loop_at
        running = [child for child in self._group.all if child.pid]
        stuck = [child.name for child in running if _silent_s(child) > limits.stuck_s]
        reasons: list[str] = []
        if loop_age_s > limits.loop_limit_s:
            reasons.append(f"the supervisor's loop has not run for {loop_age_s:.0f} s")
        if 2 * len(stuck) > len(running):
            reasons.append(f"stuck for more than {limits.stuck_s:g} s: {', '.join(stuck)}")
        return self._answer(reasons)

    def readiness(self) -> HealthResult:
        """Return whether each group of queues has a child that fetches jobs."""
        reasons = [f"no process fetches the jobs of {name}" for name in self.unserved_groups()]
        if self._group.stopping:
            reasons.insert(0, "stopping")
        return self._answer(reasons)

    def unserved_groups(self) -> list[str]:
        """Return the groups of queues that no child serves."""
        served: dict[str, bool] = {}
        for child in self._group.children:
            name = f"{child.spec.shard}: {','.join(child.spec.queues)}"
            served[name] = served.get(name, False) or serves(child, self._timings)
        return [name for name, is_served in served.items() if not is_served]

    def _answer(self, reasons: list[str]) -> HealthResult:
        children = [_child_status(child, self._timings) for child in self._group.all]
        age_s = round(time.monotonic() - self._loop_at, 3)
        status = "unavailable" if reasons else "ok"
        return not reasons, {"status": status, "reasons": reasons, "loop_age_s": age_s, "children": children}


def _silent_s(child: Child) -> float:
    return time.monotonic() - max(child.shared_state.main_thread_at, child.started_at)


def _child_status(child: Child, timings: Timings) -> dict[str, Any]:
    now, state, runs = time.monotonic(), child.shared_state, bool(child.pid)
    return {
        "name": child.name,
        "pid": child.pid or None,
        "shard": child.spec.shard,
        "queues": list(child.spec.queues),
        "state": state.state.name.lower() if runs else "dead",
        "busy": state.busy if runs else 0,
        "fetches": serves(child, timings),
        "heartbeat_age_s": round(now - state.heartbeat_at, 3) if runs and state.heartbeat_at else None,
        "fetch_age_s": round(now - state.fetched_at, 3) if runs and state.fetched_at else None,
        "restarts": child.restarts,
    }


class _Request(NamedTuple):
    source: str
    deadline: float


class HealthServer(ThreadingHTTPServer):
    """Answer ``/liveness`` and ``/readiness`` from its own threads: 200, or 503 with the reasons, as JSON.

    A request has a total deadline, and the number of open requests is limited. One request too many replaces the oldest request
    of its address, or of the address with the most: silent connections cannot block a probe.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, health: GroupHealth, host: str, port: int) -> None:
        """Listen, at ``::`` for IPv4 too. Raises ConfigurationError when the server cannot listen."""
        self.health = health
        self._open: dict[Any, _Request] = {}
        try:
            self.address_family, address = _resolved(host, port)
            super().__init__(address, _Handler)
        except OSError as error:
            place = f"{f'[{host}]' if ':' in host else host}:{port}"
            raise ConfigurationError(
                [
                    ConfigurationProblem(
                        "--health-port",
                        "",
                        f"cannot listen at {place} ({error}): choose a free port, or stop the process that uses it",
                    )
                ]
            ) from error

    def server_bind(self) -> None:
        """Bind; ``::`` is every address of this host, of both families."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(self.server_address[0] != "::"))
        super().server_bind()

    def start(self) -> None:
        """Start to answer requests."""
        threading.Thread(target=self.serve_forever, args=(_CHECK_PERIOD_S,), name="health", daemon=True).start()

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
        health = cast("HealthServer", self.server).health
        questions: dict[str, Callable[[], HealthResult]] = {
            "/liveness": health.liveness,
            "/readiness": health.readiness,
        }
        question = questions.get(self.path.partition("?")[0])
        if question is None:
            self._reply(HTTPStatus.NOT_FOUND, {"paths": list(questions)})
            return
        well, shown = question()
        self._reply(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, shown)

    def do_HEAD(self) -> None:
        """Answer with the status only."""
        self.do_GET()

    def _reply(self, status: HTTPStatus, shown: dict[str, Any]) -> None:
        body = dumps(shown) + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the server's name without a version."""
        return "application-worker"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the library
        """Log nothing, because the platform asks every few seconds."""
