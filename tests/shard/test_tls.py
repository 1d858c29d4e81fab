"""Check that the error of a push over TLS names the wrong setting, with a real server."""

import shutil
import socket
import ssl
import struct
import threading
import time
from itertools import chain

import pytest
from redis.exceptions import ResponseError

from framework.all_settings import Settings
from framework.errors import ShardUnavailableError
from framework.features.observability.fleet import FleetReader
from framework.features.observability.settings import FleetSettings
from framework.features.observability.shard_watch import RoutedClasses, ShardWatch
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from tests.chaos.test_access import Authority
from tests.harness import Site, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as port:
        return port.getsockname()[1]


def listening(client, setting):
    """Let the server listen on a free port, and return it. Another program may take the port first."""
    while True:
        port = free_port()
        try:
            client.config_set(setting, port)
        except ResponseError as error:
            if "Unable to listen" not in str(error):
                raise
        else:
            return port


@pytest.fixture
def secured(make_server, short_path):
    """A server with a TLS port and a plain one; return what changes its settings, both ports, and the folder of certificates."""
    server = make_server("redis-server")
    authority = Authority(short_path)
    folder = authority.folder
    (
        authority.certificate("valid.pem", 1),
        authority.certificate("expired.pem", 0),
        authority.certificate("renewed.pem", 30),
    )
    (folder / "names").write_text("subjectAltName=DNS:elsewhere.example")
    authority.certificate("elsewhere.pem", 1)
    (folder / "other").mkdir()
    Authority(folder / "other")
    files = {"cert-file": "valid.pem", "key-file": "server.key", "ca-cert-file": "ca.pem"}
    with server.open() as client:

        def configure(**options):
            client.config_set(*chain(*((f"tls-{name.replace('_', '-')}", value) for name, value in options.items())))

        try:
            configure(auth_clients="no", **{name: str(folder / file) for name, file in files.items()})
            secure = listening(client, "tls-port")
        except ResponseError as error:
            pytest.skip(f"this redis-server was built without TLS: {error}")
        plain = listening(client, "port")
        yield configure, plain, secure, folder


def refused(port, *, read_timeout_s=5.0, **options):
    """Return the error of a push over TLS."""
    found = {f"ssl_{name}": str(value) for name, value in options.items()}
    endpoint = Endpoint(f"rediss://127.0.0.1:{port}/0", options=tuple(found.items()))
    shard = Shard("main", endpoint, role="tests", read_timeout_s=read_timeout_s)
    with pytest.raises(ShardUnavailableError) as caught:
        shard.enqueue_one("default", b"{}")
    shard.close()
    return str(caught.value)


def test_tls_failure_names_the_wrong_setting(secured):
    configure, plain, secure, folder = secured
    options = {"ca_certs": folder / "ca.pem"}
    assert "does not speak TLS at this port" in refused(plain, **options)
    assert "set tls.ca_file to the authority's certificate" in refused(secure, ca_certs=folder / "other" / "ca.pem")
    configure(cert_file=str(folder / "expired.pem"))
    assert "its certificate has expired" in refused(secure, **options)
    configure(cert_file=str(folder / "elsewhere.pem"))
    assert "its certificate names another host" in refused(secure, **options)
    configure(cert_file=str(folder / "valid.pem"), auth_clients="yes")
    assert "set tls.cert_file and tls.key_file" in refused(secure, **options)


@pytest.mark.campaign
def test_tls_at_a_plain_port_is_logged_by_a_waiting_worker(secured, short_path):
    _, plain, _, folder = secured
    site = Site(short_path, f"redis://127.0.0.1:{plain}/0")
    site.write("redis.yml", {"shards": {"main": {"url": site.url, "tls": {"ca_file": str(folder / "ca.pem")}}}})
    process = site.worker("-q", "default", "-c", "1")
    assert "does not speak TLS at this port" in process.line(event_name="boot.waiting")["message"]
    assert process.end() == 0
    site.close()


@pytest.fixture
def ending(secured):
    """Return a function that makes a TLS server end each connection after its handshake with ``ending``; it returns the port."""
    folder = secured[3]
    servers, threads = [], []

    def serve(server, context, linger):
        while True:
            try:
                opened, _ = server.accept()
            except OSError:
                return
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", linger, 0))
            try:
                context.wrap_socket(opened, server_side=True).close()
            except OSError:
                opened.close()

    def start(ending_kind):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "valid.pem", folder / "server.key")
        if ending_kind == "alert":
            context.load_verify_locations(folder / "ca.pem")
            context.verify_mode = ssl.CERT_REQUIRED
        servers.append(socket.create_server(("127.0.0.1", 0)))
        threads.append(threading.Thread(target=serve, args=(servers[-1], context, ending_kind == "reset")))
        threads[-1].start()
        return servers[-1].getsockname()[1]

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("ending_kind", ["alert", "close", "reset"])
def test_tls_ended_after_the_handshake_names_the_setting(secured, ending, ending_kind):
    """TLS 1.3: a server refuses a certificate after the handshake of the client; the end of the connection may hide the alert."""
    folder, port = secured[3], ending(ending_kind)
    for _ in range(5):
        # No call here lasts until its time-out, except on a loaded machine.
        assert "set tls.cert_file and tls.key_file" in refused(port, read_timeout_s=60.0, ca_certs=folder / "ca.pem")
    options = {"certfile": folder / "other" / "ca.pem", "keyfile": folder / "other" / "ca.key"}
    found = refused(port, ca_certs=folder / "ca.pem", **options)
    assert "tls.cert_file" in found
    assert "valid and signed by its tls-ca-cert-file" in found


def test_figures_follow_the_certificate_of_the_server(secured, tmp_path, monkeypatch):
    configure, _, secure, folder = secured
    url = f"rediss://127.0.0.1:{secure}/0?ssl_ca_certs={folder / 'ca.pem'}"
    settings = Settings(config_dir=tmp_path, root=tmp_path, var_dir=tmp_path, shards={"main": {"url": url}})
    shard = Shard("main", Endpoint(url), role="tests")
    watch = ShardWatch(shard, FleetReader(settings), RoutedClasses(()), FleetSettings())

    def days_left():
        name = "application_worker_redis_certificate_end_timestamp_seconds"
        # None if the server was too slow for this reading.
        ends = next((one.value for one in watch.read().figures if one.name == name), None)
        return ends and round((ends - time.time()) / 86_400)

    until(lambda: days_left() == 1)
    configure(cert_file=str(folder / "renewed.pem"))
    # A connection lives on with its certificate.
    monkeypatch.setattr("framework.features.observability.shard_watch._TLS_S", 0.0)
    until(lambda: days_left() == 30)
    watch.close()
    shard.close()
