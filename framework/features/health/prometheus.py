"""Query Prometheus, and stop jobs while the value is beyond a threshold."""

import base64
import io
import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit

from framework.features.health.indicator import Normal, NotAvailable, Question, Rows, Signal, Stop, Unknown
from framework.features.health.settings import PrometheusIndicatorSettings
from framework.store.postgres import bounded_connection
from framework.text import error_class, error_message
from framework.typeguards import is_list, is_mapping

if TYPE_CHECKING:
    import psycopg

_MAX_BYTES = 1 << 20
_CHUNK = 1 << 16
_MAX_EXCERPT = 100

_CONNECTION = {
    "application_name": "application-worker: health",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 5_000,
}

# The server gets this much longer to cancel the statement itself: its error is more precise than ours.
_CANCEL_GRACE_S = 0.5


class Prometheus:
    """Stop while a value of the query is beyond the threshold.

    A query without a result, or with a result that is no number, gives Unknown: missing data must not look like health.
    """

    def __init__(self, url: str, settings: PrometheusIndicatorSettings) -> None:
        self._url = url
        self._settings = settings

    def evaluate(self, question: Question) -> Signal:
        wanted = self._settings
        if wanted.database not in (None, question.database):
            return NotAvailable(f"it measures the database {wanted.database}")
        try:
            reply = _get(f"{self._url}/api/v1/query?query={quote(wanted.query, safe='')}", question.timeout_s)
        except (OSError, HTTPException) as error:
            return Unknown(f"Prometheus does not respond: {error_class(error)}: {error_message(error, _MAX_EXCERPT)}")
        if reply.status != 200:
            return Unknown(f"Prometheus responds with status {reply.status}: {_excerpt(reply.body)}")
        values = _values(reply.body)
        if not values:
            return Unknown(
                "the query returns no number"
                if values is not None
                else f"the response is not Prometheus's: {_excerpt(reply.body)}"
            )
        return self._compare(values)

    def _compare(self, values: list[float]) -> Signal:
        wanted = self._settings
        if wanted.above is not None:
            worst, threshold, word, beyond = max(values), wanted.above, "above", max(values) > wanted.above
        else:
            worst, threshold = min(values), cast("float", wanted.below)
            word, beyond = "below", worst < threshold
        return (
            Stop(f"{worst:g} is {word} {threshold:g}") if beyond else Normal(f"{worst:g} is not {word} {threshold:g}")
        )


class _Reply(NamedTuple):
    status: int
    body: bytes


class _ReceivedSocket:
    """Received bytes in the form of a socket, for ``http.client``."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _get(url: str, timeout_s: float) -> _Reply:
    """Send a GET request with one deadline for all of it; the standard library's client has one per read."""
    deadline = time.monotonic() + timeout_s
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    lines = [
        # A response of HTTP/1.0 ends with its connection.
        f"GET {parts.path}?{parts.query} HTTP/1.0",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Accept: application/json",
        "Connection: close",
    ]
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        lines.append(f"Authorization: Basic {base64.b64encode(secret).decode()}")
    with socket.create_connection((host, port), _remaining(deadline)) as plain:
        plain.settimeout(_remaining(deadline))
        if parts.scheme == "https":
            with ssl.create_default_context().wrap_socket(plain, server_hostname=host) as secure:
                received = _exchange(secure, "\r\n".join([*lines, "", ""]).encode(), deadline)
        else:
            received = _exchange(plain, "\r\n".join([*lines, "", ""]).encode(), deadline)
    response = HTTPResponse(cast("Any", _ReceivedSocket(received)))
    response.begin()
    return _Reply(response.status, response.read())


def _exchange(connection: socket.socket, request: bytes, deadline: float) -> bytes:
    connection.sendall(request)
    received = bytearray()
    while chunk := connection.recv(_CHUNK):
        received += chunk
        if len(received) > _MAX_BYTES:
            raise HTTPException(f"more than {_MAX_BYTES} bytes")
        connection.settimeout(_remaining(deadline))
    return bytes(received)


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _values(body: bytes) -> list[float] | None:
    """Return the numbers of a result, scalar or instant vector, without NaN; ``None`` for a malformed result."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    data = answer.get("data") if is_mapping(answer) else None
    if not is_mapping(data):
        return None
    result = data.get("result")
    if data.get("resultType") == "scalar":
        samples = [result]
    elif data.get("resultType") == "vector" and is_list(result):
        samples = [series.get("value") if is_mapping(series) else None for series in result]
    else:
        return None
    numbers = [_number(sample[1]) for sample in samples if is_list(sample) and len(sample) == 2]
    return [number for number in numbers if not math.isnan(number)]


def _number(text: object) -> float:
    try:
        return float(text) if isinstance(text, str) else math.nan
    except ValueError:
        return math.nan


def _excerpt(body: bytes) -> str:
    return body[:_MAX_EXCERPT].decode(errors="replace").strip()


class HealthConnection:
    """Execute one statement at a time. A connection that failed is closed; the next statement opens a new one.

    Raises ImportError without the extra ``sql``.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        from sqlalchemy import make_url  # noqa: PLC0415 - loaded only where a database is configured

        parsed = make_url(url)
        arguments, named = parsed.get_dialect()().create_connect_args(parsed)
        self._driver = bounded_connection()
        self._arguments: tuple[Any, ...] = tuple(arguments)
        # libpq and psycopg accept no connection timeout below two seconds.
        limits = {"connect_timeout": max(2, round(timeout_s))}
        self._options: dict[str, Any] = {
            **limits,
            **_CONNECTION,
            **named,
            "autocommit": True,
            "prepare_threshold": None,
        }
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._used_at = 0.0
        self._connection: psycopg.Connection[Any] | None = None

    def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a read-only statement. Raises the driver's error, or TimeoutError."""
        if not self._lock.acquire(timeout=self._timeout_s):
            raise TimeoutError(f"other health checks used the connection for {self._timeout_s:g} s")
        try:
            existing = self._connection
            try:
                return self._execute(statement, parameters)
            except Exception:
                if existing is None or not existing.closed:
                    raise
                # The connection died while idle, which says nothing about the database's health: try once more.
                return self._execute(statement, parameters)
        except BaseException:
            self.close()
            raise
        finally:
            self._used_at = time.monotonic()
            self._lock.release()

    def _execute(self, statement: str, parameters: Mapping[str, Any] | None) -> Rows:
        connection = self._open()
        connection.deadline = time.monotonic() + self._timeout_s + _CANCEL_GRACE_S
        # Set for the transaction only, so that it also works behind a pooler that shares its sessions.
        begin = f"BEGIN READ ONLY; SET LOCAL statement_timeout = {max(1, round(self._timeout_s * 1_000))}"
        connection.execute(begin.encode())
        rows: Rows = connection.execute(statement.encode(), parameters or None).fetchall()
        connection.execute(b"COMMIT")
        return rows

    def _open(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._driver.connect(*self._arguments, **self._options)
        return self._connection

    def close_idle(self, idle_s: float) -> None:
        """Close a connection that has been idle for ``idle_s``: idle processes use no connections."""
        with self._lock:
            if time.monotonic() - self._used_at >= idle_s:
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
