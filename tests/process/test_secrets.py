"""No log line, key or report shows the password of Redis or an argument that its class does not list."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from framework.all_settings import load
from framework.features.results.payload import RESULT, result_request
from framework.known_secrets import KnownSecrets, known_secrets
from framework.settings.base import secrets_of
from framework.wire import keys
from framework.wire.status_key import STATUS_EXPIRATION
from tests.harness import ROOT, enqueue, until
from tests.process.test_worker_health import request
from tests.servers.envelopes import envelope_receiver
from tests.servers.otlp import collector

PASSWORD = "sesame-opens"
ARGUMENT = "4111-1111-1111-1111"
READS = {
    "none": lambda _client, _key: [],  # it has expired since it was listed
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


# Letters only: `jobs top` replaces numbers and ids in messages.
CANARY = "canary-quilted"
"""In the password of a URL that is no setting, which an exception quotes."""
SHOWN = "canary-velvet"
"""In the password of a URL in a context, and in an argument that log lines show."""
KEY = "0f3ab5c7d9e1"
"""In place of the user in the DSN."""
MESSAGES = ("Leak", "LeakInProcess", "LeakCause", "LeakRecorded")


def sinks(site, process, client, reports, spans, url):
    """Return what each sink holds: the log, stderr, Redis without arguments, metrics, Sentry, the collector of spans, commands."""
    jobs = [json.loads(one) for name in (keys.RETRY, keys.DEAD) for one in client.zrange(name, 0, -1)]
    # Status keys, results, records, counters, signals: all but those that hold jobs.
    work = (f"{process.identity}:work", f"{process.identity}:workers")
    held = {keys.RETRY, keys.DEAD, keys.SCHEDULE, *work}
    others = [key for key in client.keys("*") if key.decode() not in held and not key.startswith(b"aw:working:")]
    assert {b"aw:status:Discard", b"aw:result:Discard", b"aw:result:Leak-dies"} <= set(others)
    (port,) = {line["port"] for line in process.find(event_name="health.listening")}
    commands = [
        *(("top", "retry", "--by", "error"), ("list", "retry", "--json"), ("list", "dead", "--json")),
        *(("stack", process.identity), ("story", "Leak-retries", str(process.log))),
    ]
    argv = [*(("-m", "framework", "jobs", *words) for words in commands)]
    argv += [("-m", "framework", "diagnose", "--class", "LeakWorker")]
    done = {" ".join(words[2:5]): site.run(*words, REDIS_URL=url) for words in argv}
    assert "LeakRunningWorker" in done[f"jobs stack {process.identity}"].stdout
    assert "RuntimeError" in done["jobs story Leak-retries"].stdout
    return {
        "log": process.log.read_text(),
        "stderr": process.errors.read_text(),
        "errors": repr([{name: job[name] for name in job if name.startswith(("error", "failed"))} for job in jobs]),
        "redis": repr([(key, READS[client.type(key).decode()](client, key)) for key in others]),
        "metrics": request(port, "/metrics")[2],
        "sentry": repr(reports.bodies),
        "spans": repr(spans.bodies),
        **{name: one.stdout + one.stderr for name, one in done.items()},
    }


@pytest.mark.proves("I25")
def test_canaries_are_in_no_sink_after_each_failure(site, server_with_password):
    """Arguments, the password of Redis, that of another URL, the environment, and exceptions with causes."""
    own, client = server_with_password
    shutil.copy(Path(__file__).parent / "leaking_jobs.py", site.folder)
    tasks = site.folder / "tasks.db"
    site.write("application.yml", {"tracing": {"opentelemetry": True}, "tasks": {"url": f"sqlite:///{tasks}"}})
    environment = {
        "REDIS_URL": own.url.replace("unix://", f"unix://:{PASSWORD}@"),
        "LEAK_ENVIRONMENT": f"env-{CANARY}",
        "LEAK_URL": f"postgresql://ann:{CANARY}@db/shop",
    }
    options = ("-r", "leaking_jobs", "-q", "default", "-c", "3", "-t", "0", "--health-port", "0")
    with envelope_receiver() as reports, collector() as spans:
        environment |= {"SENTRY_DSN": reports.dsn.replace("key@", f"{KEY}@"), "OTEL_EXPORTER_OTLP_ENDPOINT": spans.url}
        process = site.hurried_worker(*options, **environment).ready()
        kept = {STATUS_EXPIRATION: 600, RESULT: result_request(600)}
        for name in MESSAGES:
            enqueue(client, f"{name}Worker", args=[ARGUMENT], jid=f"{name}-retries", retry=3)
            enqueue(client, f"{name}Worker", args=[ARGUMENT], jid=f"{name}-dies", retry=0, **kept)
        place = f"redis://ann:{SHOWN}@cache/1"
        shown = {"args": [ARGUMENT, place], "jid": "shown", "meta.user": place, "retry": 0}
        enqueue(client, "LeakRecordedWorker", **shown)
        for name in ("Crash", "Timeout", "Discard", "Later", "Running"):
            enqueue(client, f"Leak{name}Worker", args=[ARGUMENT], jid=name, retry=0, **kept)
        client.lpush(keys.queue("default"), b'{"class": "LeakWorker", "args": ["%s"' % ARGUMENT.encode())
        until(lambda: [client.zcard(name) for name in (keys.RETRY, keys.DEAD, keys.SCHEDULE)] == [4, 8, 1], "the ends")
        process.line(jid="Discard", job_status="dropped"), process.line(jid="Running", job_status="start")
        until(lambda: client.hgetall(f"{process.identity}:work"), "its work")
        until(lambda: len(reports.events) >= 11 and len(spans.spans) >= 14, "reports and spans")
        found = sinks(site, process, client, reports, spans, environment["REDIS_URL"])
        process.end()
    with sqlite3.connect(tasks) as database:
        found["tasks"] = "\n".join(database.iterdump())
    assert found["tasks"].count("cannot reach postgresql://***@db/shop") >= 9
    assert found["log"].count("redis://***@cache/1") == 4
    # What can leak a URL has it, masked.
    silent = {"stderr", "metrics", next(name for name in found if name.startswith("jobs stack"))}
    assert {name for name, text in found.items() if "://***@db/shop" not in text} == silent
    for canary in (PASSWORD, CANARY, SHOWN, KEY, ARGUMENT):
        holding = [name for name, text in found.items() if canary in text]
        # An operator who lists jobs sees their arguments and their context. The tasks keep the shown arguments for retry_failed. The
        # key of a DSN is the login at Sentry itself.
        listed = {"jobs list retry", "jobs list dead"}
        allowed = {ARGUMENT: listed, SHOWN: {*listed, "tasks"}, KEY: {"sentry"}}.get(canary, set())
        assert not set(holding) - allowed, canary


BOOTS = {
    "Redis": {"REDIS_URL": f"redis://:{CANARY}@127.0.0.1:none/0"},
    "DSN": {"SENTRY_DSN": f"https://{CANARY}@sentry.example/shop"},
    "database": {"FRAMEWORK_TASKS__URL": f"oracle://ann:{CANARY}@db/shop"},
    "Prometheus": {"FRAMEWORK_HEALTH__PROMETHEUS__URL": f"htp://ann:{CANARY}@metrics.example"},
}


@pytest.mark.proves("I25")
@pytest.mark.parametrize("wrong", BOOTS.values(), ids=BOOTS)
def test_boot_error_names_a_wrong_url_without_its_secret(site, wrong):
    process = site.worker("-q", "default", **wrong)
    assert process.wait() == 78, process.output
    assert next(iter(wrong)) in process.output
    assert CANARY not in process.log.read_text() + process.errors.read_text()


REFUSED = f"""
import traceback
from framework.errors import ShardUnavailableError
import jobs

try:
    jobs.NoopWorker.perform_async("{ARGUMENT}")
except ShardUnavailableError as error:
    traceback.print_exc()
    print(error, repr(error), vars(error), error.__cause__, repr(error.__cause__))
"""


@pytest.mark.proves("I25")
@pytest.mark.parametrize("place", ["127.0.0.1:1", "nowhere.invalid:6379"])
def test_refused_push_shows_no_secret(site, place):
    done = site.run("-c", REFUSED, REDIS_URL=f"redis://ann:{PASSWORD}@{place}/0")
    assert "ShardUnavailableError" in done.stdout + done.stderr
    assert place.partition(":")[0] in done.stdout
    assert not [secret for secret in (PASSWORD, ARGUMENT) if secret in done.stdout + done.stderr]


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
