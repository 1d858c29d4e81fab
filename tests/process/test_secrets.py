"""No log line, key or report shows the password of Redis or an argument that its class does not list."""

import pytest

from framework.wire import keys
from tests.harness import ROOT, enqueue, until

PASSWORD = "s3same-0pen"
ARGUMENT = "4111-1111-1111-1111"
READS = {
    "string": lambda client, key: [client.get(key)],
    "list": lambda client, key: client.lrange(key, 0, -1),
    "set": lambda client, key: list(client.smembers(key)),
    "zset": lambda client, key: client.zrange(key, 0, -1),
    "hash": lambda client, key: [part for pair in client.hgetall(key).items() for part in pair],
}


def all_entries(client):
    """Return every key and value of this Redis."""
    return b"".join(part for key in client.keys("*") for part in [key, *READS[client.type(key).decode()](client, key)])


@pytest.fixture
def server_with_password(make_server):
    """A server with a password: its client, and its URL with another password than that."""
    own = make_server()
    with own.open() as client:
        client.config_set("requirepass", PASSWORD)
        yield own, client


@pytest.mark.proves("I25")
def test_password_and_argument_are_in_no_line_key_or_report(site, server_with_password):
    own, client = server_with_password
    url = own.url.replace("unix://", f"unix://:{PASSWORD}@")
    enqueue(client, "StrictWorker", args=[ARGUMENT])  # a failure about this very argument
    enqueue(client, "TalkWorker", args=[1, ARGUMENT])
    process = site.worker("-q", "default", "-t", "0", REDIS_URL=url).ready()
    process.line(job_status="fail"), process.line(job_status="done")
    until(lambda: client.hgetall(process.identity), "its record")
    (failed,) = until(lambda: client.zrange(keys.RETRY, 0, -1))
    assert failed.count(ARGUMENT.encode()) == 1  # in its arguments, not in the error of the same payload
    assert PASSWORD.encode() not in all_entries(client)
    own.kill()
    process.line(event_name="redis.failed")
    own.start()  # it has no password now, and refuses any
    process.end()
    assert process.log.read_bytes().count(ARGUMENT.encode()) == 0
    assert PASSWORD.encode() not in process.log.read_bytes() + process.errors.read_bytes()


@pytest.mark.proves("I25")
@pytest.mark.refused("default HELLO")
@pytest.mark.parametrize(
    "argv",
    [
        ["-c", "import jobs; jobs.NoopWorker.perform_async()"],
        [str(ROOT / "scripts" / "retired")],
        [str(ROOT / "scripts" / "route"), "--lint", "--live", "-r", "jobs"],
    ],
    ids=["a push", "retired", "route"],
)
def test_wrong_password_is_not_shown_by_any_command(site, server_with_password, argv):
    own, _ = server_with_password
    wrong = f"not-{PASSWORD}"
    site.write("application.yml", {"retired_workers": {"Gone": "no need"}})
    done = site.run(*argv, REDIS_URL=own.url.replace("unix://", f"unix://:{wrong}@"))
    assert done.returncode
    assert "invalid username-password pair" in done.stdout + done.stderr  # the command reached the server
    assert PASSWORD not in done.stdout + done.stderr
