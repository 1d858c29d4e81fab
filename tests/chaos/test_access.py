"""Test changed passwords, removed rights, and expired certificates: logged clearly, recovered in seconds."""

import shutil
import socket
import subprocess
import time
from itertools import chain
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from tests.chaos.test_signals import SLACK_S
from tests.harness import until

SECRETS = ("first-secret", "second-secret")


def with_user(scene, password):
    """Give the shard a user and a password, as an operator does: in config/redis.yml."""
    shard = {"url": scene.url, "username": "worker", "password": password}
    scene.site.write("redis.yml", {"shards": {"main": shard}})


def acl(scene, *rules):
    scene.client.execute_command("ACL", "SETUSER", "worker", *rules)


def cut(scene):
    """Close every other connection, so that the next ones have to log in."""
    scene.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def worker(scene):
    """Start a worker that reads its shard from config/redis.yml."""
    return scene.site.start("-m", "framework", "worker", "-r", "jobs", "-q", "default", "-c", "2")


def at_work(scene, process, value):
    scene.enqueue("NoteWorker", value)
    scene.wait_for("note", value, timeout_s=5 + SLACK_S)
    scene.settled(process)


def refused_for(process, error):
    """Return the log line of a refusal of this kind; it names the user, and the text of the error the missing right."""
    kind = f"redis.exceptions.{error}"
    line = process.line(**{"event_name": "redis.failed", "exception.class": kind})
    assert line["user"] == "worker"
    return line


@pytest.mark.proves("F49", "I25")
@pytest.mark.refused("worker HELLO", "worker evalsha")
def test_worker_survives_changed_passwords_and_rights(scene, measured):
    """Two passwords at once let processes move from one to the other; each error names the user and the refused right."""
    acl(scene, "on", f">{SECRETS[0]}", "~*", "&*", "+@all")
    with_user(scene, SECRETS[0])
    first = worker(scene).ready()
    at_work(scene, first, "with the first password")
    acl(scene, f">{SECRETS[1]}")
    with_user(scene, SECRETS[1])
    second = worker(scene).ready()
    acl(scene, f"<{SECRETS[0]}")
    cut(scene)
    assert "refuses the user or the password" in refused_for(first, "AuthenticationError")["message"]
    at_work(scene, second, "with the second password")
    acl(scene, f">{SECRETS[0]}")
    begun_at = time.monotonic()
    until(lambda: first.find(event_name="redis.recovered"), "the first is back", 5 + SLACK_S)
    measured("back_with_a_password_s", time.monotonic() - begun_at)
    assert first.end() == 0

    acl(scene, "-evalsha", "-eval")
    refusal = refused_for(second, "NoPermissionError")["exception.message"].lower()
    assert "worker" in refusal
    assert "eval" in refusal
    acl(scene, "+evalsha", "+eval")
    begun_at = time.monotonic()
    at_work(scene, second, "with its rights")
    measured("back_with_rights_s", time.monotonic() - begun_at)
    with_user(scene, "wrong-secret")
    third = worker(scene)
    waiting = third.line(event_name="boot.waiting")
    assert (waiting["user"], waiting["exception.class"]) == ("worker", "redis.exceptions.AuthenticationError")
    assert [process.end() for process in (second, third)] == [0, 0]
    scene.once()
    for process in (first, second, third):
        shown = process.log.read_text() + process.errors.read_text()
        assert not [secret for secret in (*SECRETS, "wrong-secret") if secret in shown]


EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Makes certificates for 127.0.0.1 in a folder, with OpenSSL's own program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Python 3.13 requires the authority's key in a certificate, and the use of the key in an authority's certificate.
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        authority = ("-subj", "/CN=authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._run("req", "-x509", *EC, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", *authority)
        self._run("req", *EC, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")

    def certificate(self, name: str, days: int) -> Path:
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        self._run("x509", "-req", "-in", "server.csr", *signed, "-days", str(days), "-out", name)
        return self.folder / name

    def _run(self, *argv: str) -> None:
        subprocess.run(["openssl", *argv], cwd=self.folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
@pytest.mark.proves("F49")
def test_certificate_at_expiry_is_logged_and_replaced(scene, make_server, short_path, measured):
    server = make_server("redis-server")
    authority = Authority(short_path)
    valid, expired = authority.certificate("valid.pem", 1), authority.certificate("expired.pem", 0)
    with (
        server.open() as scene.client,
        socket.create_server(("127.0.0.1", 0)) as port,
    ):
        number = port.getsockname()[1]
        port.close()
        files = {"cert-file": valid, "key-file": short_path / "server.key", "ca-cert-file": short_path / "ca.pem"}
        options = {"auth-clients": "no", "port": str(number)} | {name: str(path) for name, path in files.items()}
        try:
            scene.client.config_set(*chain(*((f"tls-{name}", value) for name, value in options.items())))
        except ResponseError as error:
            pytest.skip(f"this redis-server was built without TLS: {error}")
        shard = {"url": f"rediss://127.0.0.1:{number}/0", "tls": {"ca_file": str(short_path / "ca.pem")}}
        scene.site.write("redis.yml", {"shards": {"main": shard}})
        process = worker(scene).ready()
        at_work(scene, process, "over TLS")
        scene.client.config_set("tls-cert-file", str(expired))
        cut(scene)
        until(
            lambda: [line for line in process.find(event_name="redis.failed") if "expired" in line["exception.message"]]
        )
        scene.client.config_set("tls-cert-file", str(valid))
        begun_at = time.monotonic()
        at_work(scene, process, "with a new certificate")
        measured("back_with_a_certificate_s", time.monotonic() - begun_at)
        assert process.end() == 0
