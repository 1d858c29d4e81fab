"""No log line, key or report shows the password of Redis or an argument that its class does not list."""

import json
import shutil
from pathlib import Path

import pytest

from framework.all_settings import load
from framework.known_secrets import KnownSecrets, known_secrets
from framework.settings.base import secrets_of
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


CANARY = "canary-7f3a9c"
"""In the password of a URL that is no setting, which an exception quotes."""
MESSAGES = ("Leak", "LeakInProcess", "LeakCause")


def sinks(site, process, client):
    """Return what each sink holds: the log, stderr, the error fields in Redis, records and keys without arguments, commands."""
    jobs = [json.loads(one) for name in (keys.RETRY, keys.DEAD) for one in client.zrange(name, 0, -1)]
    outside = [client.hgetall(process.identity), client.hgetall(keys.COUNTERS), client.keys("*")]
    commands = [
        *(
            ("-m", "framework", "jobs", *words)
            for words in (("stats",), ("processes",), ("top", "retry", "--by", "error"))
        ),
        *(("-m", "framework", "jobs", "list", place) for place in ("retry", "dead")),
        *(("-m", "framework", *words) for words in (("diagnose",), ("jobs", "counters"))),
    ]
    return {
        "log": process.log.read_text(),
        "stderr": process.errors.read_text(),
        "errors": repr([{name: job[name] for name in job if name.startswith(("error", "failed"))} for job in jobs]),
        "keys": repr(outside),
        **{" ".join(words[2:]): (done := site.run(*words)).stdout + done.stderr for words in commands},
    }


@pytest.mark.proves("I25")
def test_canaries_are_in_no_sink_after_each_failure(site, server_with_password):
    """Arguments, the password of Redis, that of another URL, the environment, and exceptions with causes."""
    own, client = server_with_password
    shutil.copy(Path(__file__).parent / "leaking_jobs.py", site.folder)
    url = own.url.replace("unix://", f"unix://:{PASSWORD}@")
    environment = {
        "REDIS_URL": url,
        "LEAK_ENVIRONMENT": f"env-{CANARY}",
        "LEAK_URL": f"postgresql://ann:{CANARY}@db/shop",
    }
    process = site.worker("-r", "leaking_jobs", "-q", "default", "-c", "2", "-t", "0", **environment).ready()
    for name in MESSAGES:
        enqueue(client, f"{name}Worker", args=[ARGUMENT], jid=f"{name}-retries", retry=3)
        enqueue(client, f"{name}Worker", args=[ARGUMENT], jid=f"{name}-dies", retry=0)
    enqueue(client, "LeakCrashWorker", args=[ARGUMENT], jid="crash", retry=0)
    enqueue(client, "LeakTimeoutWorker", args=[ARGUMENT], jid="timeout", retry=0)
    client.lpush(keys.queue("default"), b'{"class": "LeakWorker", "args": ["%s"' % ARGUMENT.encode())
    until(lambda: (client.zcard(keys.RETRY), client.zcard(keys.DEAD)) == (3, 6), "all failures")
    found = sinks(site, process, client)
    assert "://***@db/shop" in found["errors"]
    for canary in (PASSWORD, CANARY, ARGUMENT):
        held = [name for name, text in found.items() if canary in text]
        # An operator who lists jobs sees their arguments.
        allowed = {"jobs list retry", "jobs list dead"} if canary == ARGUMENT else set()
        assert not set(held) - allowed, canary
    process.end()


def test_secrets_of_settings_are_masked_in_any_text():
    known = KnownSecrets()
    known.add(["short", "longer-secret", "with/slash"])
    text = "short longer-secret with%2Fslash redis://u:p@host/1 a@b.example https://key@sentry/1 //x:y@z"
    assert known.masked(text) == "short *** *** redis://***@host/1 a@b.example https://***@sentry/1 //x:y@z"
    settings = load(
        {"REDIS_URL": f"redis://user:{PASSWORD}@host/0", "SENTRY_DSN": f"https://{CANARY}@sentry.example/1"}, ROOT
    )
    assert {PASSWORD, CANARY} <= set(secrets_of(settings))
    assert known_secrets.masked(f"<{PASSWORD}> <{CANARY}>") == "<***> <***>"
