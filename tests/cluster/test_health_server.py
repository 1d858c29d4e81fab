"""Test the HTTP answers about a group; the test sets the shared state of its children."""

import http.client
import json
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
import pytest

from framework.all_settings import load
from framework.cli.process_options import read_health_address
from framework.cluster.child import ChildSpec
from framework.cluster.supervisor import GroupHealth, Supervisor
from framework.errors import ConfigurationError
from framework.process import health_server as module
from framework.process.health_server import HealthServer
from framework.process.shared_state import ProcessState
from framework.process.worker_options import HealthAddress
from framework.timings import STANDARD
from tests.cluster.test_supervisor import LeaseRecorder
from tests.harness import until
from tests.tables import each_row

SLEEPS = "import time; time.sleep(600)"


class ServedGroup:
    def __init__(self):
        queues = [("a", ("default", "mails")), ("b", ("default", "mails")), ("c", ("search",))]
        argv = [sys.executable, "-I", "-S", "-c", SLEEPS]
        self.group = Supervisor(
            [ChildSpec(name, argv, "main", queues=names) for name, names in queues], leases=LeaseRecorder()
        )
        self.health = GroupHealth(self.group)
        self.server = HealthServer(self.health.answers, HealthAddress("127.0.0.1", 0))
        self.group.start()
        self.server.start()

    def shared_state_of(self, name):
        return next(child.shared_state for child in self.group.children if child.name == name)

    def set_ready(self, *names):
        for name in names:
            self.shared_state_of(name).note_heartbeat()
            self.shared_state_of(name).publish(ProcessState.READY, 2, time.monotonic())

    def request(self, path, method="GET"):
        connection = http.client.HTTPConnection(*self.server.server_address, timeout=10)
        connection.request(method, path)
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        return reply.status, json.loads(body) if body else None

    def connect(self):
        return socket.create_connection(self.server.server_address, timeout=10)


@pytest.fixture
def served(monkeypatch):
    monkeypatch.setattr(module, "_CHECK_PERIOD_S", 0.05)
    made = ServedGroup()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.group.stop(0)


def test_readiness_needs_a_fetching_child_per_group(served):
    status, shown = served.request("/readiness")
    assert (status, shown["status"]) == (503, "unavailable")
    assert shown["reasons"] == [
        "no process fetches the jobs of main: default,mails",
        "no process fetches the jobs of main: search",
    ]
    served.set_ready("a")
    assert served.request("/readiness")[1]["reasons"] == ["no process fetches the jobs of main: search"]
    served.set_ready("c")
    status, shown = served.request("/readiness")
    assert (status, shown["reasons"]) == (200, [])
    first, second, _ = shown["children"]
    assert 0 <= first.pop("heartbeat_age_s") < 30
    assert 0 <= first.pop("fetch_age_s") < 30
    assert first == {
        "name": "a", "pid": served.group.children[0].pid, "shard": "main", "queues": ["default", "mails"],
        "state": "ready", "busy": 2, "fetches": True, "restarts": 0,
    }  # fmt: skip
    assert (second["state"], second["fetches"], second["heartbeat_age_s"]) == ("starting", False, None)


@pytest.mark.parametrize("limit", ["fetch_silence_limit_s", "lease_s"])
def test_readiness_of_process_that_does_not_fetch_is_503(served, limit):
    served.set_ready("a", "c")
    served.health._timings = replace(STANDARD, **{limit: -1.0})  # fetches or heartbeats get no answer any more
    assert served.request("/readiness")[0] == 503
    assert served.request("/liveness")[0] == 200  # a restart would not help
    served.health._timings = STANDARD
    served.shared_state_of("a").publish(ProcessState.QUIET, 0, None)
    served.shared_state_of("c").publish(ProcessState.DRAINING, 0, None)
    assert len(served.request("/readiness")[1]["reasons"]) == 2


def test_liveness_needs_the_loop_and_half_of_the_children(served):
    assert served.request("/liveness")[0] == 200
    served.health._timings = replace(STANDARD, loop_limit_s=-1.0)
    status, shown = served.request("/liveness")
    assert (status, "loop has not run" in shown["reasons"][0]) == (503, True)
    served.health._timings = STANDARD
    time_of = module.time.monotonic
    served.set_ready("a", "b", "c")
    served.health._timings = replace(STANDARD, stuck_s=0.3)
    until(lambda: served.request("/liveness")[0] == 503)
    assert served.request("/liveness")[1]["reasons"] == ["stuck for more than 0.3 s: a, b, c"]
    served.health._timings = replace(STANDARD, stuck_s=60.0)
    for name in "bc":
        served.shared_state_of(name)._cells[2] = time_of() - 100
        next(child for child in served.group.children if child.name == name).started_at -= 100
    assert served.request("/liveness")[1]["reasons"] == ["stuck for more than 60 s: b, c"]
    served.set_ready("b")
    assert served.request("/liveness")[0] == 200


def test_stopping_group_is_live_and_not_ready(served):
    served.set_ready("a", "c")
    served.group.stop(0)
    assert served.request("/liveness")[0] == 200
    assert served.request("/readiness")[1]["reasons"][0] == "stopping"


def test_health_server_other_requests_are_refused(served):
    assert served.request("/liveness?verbose=1")[0] == 200
    assert served.request("/readiness", "HEAD") == (503, None)
    assert served.request("/")[0] == 404
    connection = http.client.HTTPConnection(*served.server.server_address, timeout=10)
    connection.request("POST", "/liveness")
    reply = connection.getresponse()
    assert (reply.status, reply.headers["Server"]) == (501, "application-worker")
    connection.close()


def test_health_server_slow_request_has_a_total_deadline(served, monkeypatch):
    monkeypatch.setattr(module, "_DEADLINE_S", 1.5)
    slow = served.connect()
    with pytest.raises(OSError):  # further bytes do not extend the deadline
        while True:
            slow.sendall(b"G")
            slow.settimeout(0.05)
            try:
                if slow.recv(1) == b"":
                    raise ConnectionResetError
            except TimeoutError:
                continue
    until(lambda: not served.server._open, "no request is open")
    assert served.request("/liveness")[0] == 200
    slow.close()


def is_open(connection):
    """Return whether the server has kept the connection open."""
    connection.settimeout(0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_liveness_beside_200_silent_and_slow_ones_answers(served):
    """The answer comes before the first of these connections times out."""
    silent = [served.connect() for _ in range(200)]
    assert served.request("/liveness")[0] == 200
    slow = [served.connect() for _ in range(20)]
    for one in slow:
        one.sendall(b"GET /liveness HTTP/1.1\r\nX-A: ")
    for number in range(30):
        for one in slow:
            if is_open(one):
                one.sendall(b"a")
        assert served.request("/liveness" if number % 2 else "/readiness")[0] in (200, 503)
        silent.append(served.connect())
    assert len(served.server._open) <= module._MOST_OF_AN_ADDRESS
    until(lambda: sum(map(is_open, silent)) <= module._MOST_OF_AN_ADDRESS, "the oldest gave way")
    assert is_open(silent[-1])
    for one in (*silent, *slow):
        one.close()


def test_health_server_full_closes_oldest_of_busiest_address(served, monkeypatch):
    monkeypatch.setattr(module, "_MOST_REQUESTS", 20)

    def connect(source):
        return socket.create_connection(served.server.server_address, timeout=10, source_address=(source, 0))

    many = [connect("127.0.0.2") for _ in range(14)]
    few = [connect("127.0.0.3") for _ in range(6)]
    until(lambda: len(served.server._open) == 20, "the server is full")
    probe = connect("127.0.0.4")
    until(lambda: not is_open(many[0]), "the server closes the oldest connection of the busiest address")
    assert all(map(is_open, [*many[1:], *few, probe]))
    for one in (*many, *few, probe):
        one.close()


def test_health_server_ipv6_network_counts_as_one_address():
    sources = map(
        module._source, ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1", "::ffff:10.0.0.1", "10.0.0.1")
    )
    assert list(sources) == ["2001:db8:1:2::/64", "2001:db8:1:2::/64", "2001:db8:1:3::/64", "10.0.0.1", "10.0.0.1"]


@pytest.mark.parametrize(
    ("host", "reached", "missed"),
    [
        ("::", ["127.0.0.1", "::1"], []),
        ("::1", ["::1"], ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1"], ["::1"]),
        ("localhost", ["localhost"], []),
    ],
)
def test_health_server_answers_at_each_address_family(served, host, reached, missed):
    server = HealthServer(served.health.answers, HealthAddress(host, 0))
    server.start()
    port = server.server_address[1]
    try:
        for one in reached:
            connection = http.client.HTTPConnection(one, port, timeout=10)
            connection.request("GET", "/liveness")
            assert connection.getresponse().status == 200
            connection.close()
        for one in missed:
            with pytest.raises(OSError):
                socket.create_connection((one, port), timeout=10)
    finally:
        server.shutdown()
        server.server_close()


def address(folder, host, port, **env):
    settings = load({"FRAMEWORK_CONFIG_DIR": str(folder), "REDIS_URL": "redis://unused", **env}, folder)
    found = read_health_address(settings, host, port)
    return None if found is None else found[:2]


@each_row(
    ("host", "port", "where"),
    [
        (None, None, None),
        (None, 8080, ("127.0.0.1", 8080)),
        ("127.0.0.1", None, None),
        ("127.0.0.1", 8080, ("127.0.0.1", 8080)),
        ("127.0.0.1:8080", None, ("127.0.0.1", 8080)),
        ("health.internal:0", None, ("health.internal", 0)),
        ("::1", 8080, ("::1", 8080)),
        ("::", 0, ("::", 0)),
        ("[::1]", 8080, ("::1", 8080)),
        ("[::1]:8080", None, ("::1", 8080)),
        ("[fe80::1%eth0]:8080", 8080, ("fe80::1%eth0", 8080)),
    ],
)
def test_health_host_names_address_and_perhaps_port(tmp_path, host, port, where):
    assert address(tmp_path, host, port) == where


@each_row(
    ("host", "port", "where"),
    [
        (None, None, ("::", 7433)),
        ("127.0.0.1", None, ("127.0.0.1", 7433)),
        (None, 0, ("::", 0)),
        ("[::1]:8080", None, ("::1", 8080)),
    ],
)
def test_health_options_override_the_settings(tmp_path, host, port, where):
    env = {"FRAMEWORK_HEALTH__PORT": "7433", "FRAMEWORK_HEALTH__HOST": "::"}
    assert address(tmp_path, host, port, **env) == where


@each_row(
    ("name", "value", "message"),
    [
        ("PORT", "99999", "FRAMEWORK_HEALTH__PORT: must be a whole number from 0 to 65,535"),
        ("HOST", "a b", "FRAMEWORK_HEALTH__HOST: must be a name or an address"),
    ],
)
def test_health_setting_that_is_invalid_is_refused(tmp_path, name, value, message):
    with pytest.raises(ConfigurationError, match=message):
        address(tmp_path, None, None, **{f"FRAMEWORK_HEALTH__{name}": value})


@each_row(
    ("host", "port", "message"),
    [
        ("[::1", 8080, "is no address"),
        ("a b", 8080, "is no address"),
        ("", 8080, "is no address"),
        ("http://x", 8080, "is no address"),
        ("[::1]:8080", 8081, "name two ports"),
        ("[::1]:99999", None, "from 0 to 65,535"),
    ],
)
def test_health_host_that_is_no_address_is_refused(tmp_path, host, port, message):
    with pytest.raises(click.UsageError, match=message):
        address(tmp_path, host, port)


def test_health_server_used_port_is_refused_before_start(served):
    port = served.server.server_address[1]
    with pytest.raises(ConfigurationError, match=rf"cannot listen at 127.0.0.1:{port} .*choose a free port"):
        HealthServer(served.health.answers, HealthAddress("127.0.0.1", port, "application.yml: health.port"))


def test_shared_state_is_read_through_its_descriptor_only(monkeypatch):
    from framework.process.shared_state import SHARED_STATE_VARIABLE, SharedState

    created, descriptor = SharedState.create()
    monkeypatch.setenv(SHARED_STATE_VARIABLE, str(descriptor))
    own = SharedState.from_environment()
    assert not Path(f"/proc/self/fd/{descriptor}").exists()
    own.publish(ProcessState.QUIET, 3, 7.0)
    assert (created.state, created.busy, created.fetched_at, created.heartbeat_at) == (ProcessState.QUIET, 3, 7.0, 0.0)
    assert created.main_thread_at > 0
    own.publish(ProcessState.STOPPING, 0, None)
    assert created.fetched_at == 7.0
    unshared = SharedState.from_environment()  # the environment variable is removed
    unshared.publish(ProcessState.READY, 1, 1.0)
    assert created.state is ProcessState.STOPPING
    monkeypatch.setenv(SHARED_STATE_VARIABLE, "9999")
    assert SharedState.from_environment().state is ProcessState.STARTING
