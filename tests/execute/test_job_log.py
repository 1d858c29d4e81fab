"""The two lines of a run: valid JSON with the same fields for any payload."""

import json
import math
import os
import tempfile
import threading
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import PayloadError
from framework.execute import job_log
from framework.execute.job_log import JobLog, filtered_arguments, retry_number
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry import logs
from framework.telemetry.logs import MAX_NAME, ServerLog, iso_time, json_text, shorten
from framework.wire.job import base36, decode, timestamp, version_of
from framework.wire.json import dumps
from tests.harness import STARTED, examples, payload, server_lines

NOW = STARTED + 1.25
STATIC = {"pid": 711, "worker_id": "sidekiq_1", "shard": "main"}
HEAD = ["severity", "time", "message", *STATIC]


class Lines:
    """A job log, the clock it reads, and the lines that it wrote."""

    def __init__(self, *, jobs=True):
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        self.read = 0
        self.server = ServerLog(self.file.fileno(), "info", STATIC)
        self.log = JobLog(self.server, jobs=jobs)

    def take(self):
        """Return the lines since the last call."""
        assert self.server.writer.flush(timeout_s=20)
        data = os.pread(self.file.fileno(), 1 << 24, self.read)
        self.read += len(data)
        return [strict(line) for line in data.splitlines()]

    def close(self):
        self.server.writer.close()
        self.file.close()


def strict(line):
    """Parse as the strictest reader: no NaN, no name twice."""

    def once(pairs):
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names)), names
        return dict(pairs)

    def refuse(name):
        raise AssertionError(name)

    return json.loads(line.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(job_log.time, "time", lambda: NOW)
    opened = []

    def open_log(**options):
        opened.append(Lines(**options))
        return opened[-1]

    yield open_log
    for one in opened:
        one.close()


@pytest.fixture
def both(lines):
    return lines()


@pytest.fixture(autouse=True)
def alone():
    with registry.isolated():
        yield


def declared(loggable=(), **attributes):
    def perform(self, *args):
        pass

    body = {"feature_category": "not_owned", "wire_name": "Job", "perform": perform}
    declaration = type("Job", (ApplicationWorker,), {**body, **attributes}).declaration()
    return replace(declaration, loggable_positions=frozenset(loggable))


def unit_of(job, queue="q"):
    return UnitOfWork(queue, dumps(job))


def plainly(job, unit, declaration):
    """Return the fields of both lines, built in the simplest way: the pieces must give the same."""
    fields = {
        **STATIC,
        "class": job["class"],
        "jid": as_text(job.get("jid"), MAX_NAME),
        "queue": unit.queue,
        "shard": "main",
        "args": filtered_arguments(job, declaration),
        "retry": retry_number(job.get("retry")),
        "job_size_bytes": len(json_text(job["args"]).encode()),
        "version": version_of(job),
        "tid": base36(threading.get_ident()),
    }
    if job.get("correlation_id") is not None:
        fields["correlation_id"] = as_text(job["correlation_id"], MAX_NAME)
    if declaration is not None:
        wait, run = {"high": (10, 10), "low": (60, 300), "throttled": (None, 300)}[declaration.urgency]
        of_class = {
            "feature_category": declaration.feature_category,
            "urgency": declaration.urgency,
            "queue_namespace": declaration.queue_namespace,
            "target_scheduling_latency_s": wait,
            "target_duration_s": run,
            "worker_name": None if job["class"] == declaration.wire_name else declaration.wire_name,  # under an alias
        }
        fields.update({name: value for name, value in of_class.items() if value is not None})
        callers = job.get("meta.feature_category")
        if declaration.feature_category == "not_owned" and isinstance(callers, str) and callers:
            fields["feature_category"] = callers
    fields.update(copied_fields(job))
    for name in ("created_at", "scheduled_at", "enqueued_at", "failed_at", "retried_at"):
        seconds = timestamp(job.get(name))
        if seconds is not None:
            fields[name] = iso_time(seconds)
    since = timestamp(job.get("enqueued_at"))
    since = timestamp(job.get("created_at")) if since is None else since
    if since is not None:
        fields["queue_duration_s"] = fields["scheduling_latency_s"] = round(max(0.0, NOW - since), 6)
    enqueued, scheduled = timestamp(job.get("enqueued_at")), timestamp(job.get("scheduled_at"))
    if enqueued is not None and scheduled is not None:
        fields["enqueue_latency_s"] = round(max(0.0, enqueued - scheduled), 6)
    return readable(fields)


def copied_fields(job):
    """Return the fields that lines repeat, each with one type."""
    fields = {}
    for name, value in job.items():
        if name in TEXTS and value is not None:
            fields[TEXTS[name]] = as_text(value, 4_096)
        if name in COUNTS and type(value) is int and abs(value) < 2**63:
            fields[name] = value
        if name in ("compressed", "rescheduled_once") and value is True:
            fields[name] = True
        if name == "tags" and isinstance(value, list):
            fields[name] = ["null" if tag is None else as_text(tag, 64) for tag in value[:64]]
        if name in OBJECTS and isinstance(value, dict) and len(json_text(value)) <= 4_096:
            fields[name] = value
        if name.startswith("meta."):
            text = json_text(value)
            fields[name] = value if len(text) <= 4_096 else shorten(text, 4_096)
    return fields


TEXTS = {
    **{name: name for name in ("bid", "size_limiter", "wrapped", "display_class", "idempotency_key", "duplicate-of")},
    "deferred_by": "job_deferred_by",
}
COUNTS = ("interrupted_count", "retry_count", "original_job_size_bytes", "deferred_count")
OBJECTS = ("wal_locations", "dedup_wal_locations")


def as_text(value, most):
    """Return a field as a text, also if another program has written a number or an object."""
    return None if value is None else shorten(value if isinstance(value, str) else json_text(value), most)


def readable(value):
    """Return the value as JSON has it: a number that is not finite is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: readable(one) for key, one in value.items()}
    return [readable(one) for one in value] if isinstance(value, list) else value


# --- any payload ------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=12) | st.sampled_from(["\0", '"', "\\", "\u2028", "\x7f", "é", "🙂", "</script>", "a\nb"])
BIG = st.integers(-(10**40), 10**40) | st.sampled_from([10**18, -(10**18), 10**18 - 1, 10**3999])
NUMBERS = BIG | st.floats() | st.sampled_from([1.5, 1e300, -0.0])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
ANY = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=6
)
TIMES = (
    st.floats(0, 2e9)
    | st.integers(0, 2_000_000_000_000)
    | st.sampled_from([NOW, NOW + 1, STARTED, 253_402_300_799.9996, 253_402_300_800, 2.6e11, -1, -0.5, "1750000000.5"])
    | ANY
)
EQUAL = st.sampled_from([1, True, 1.0, "1"])
NAMED = {
    "jid": TEXT | EQUAL | ANY,
    "retry": ANY,
    "queue": TEXT,
    "correlation_id": EQUAL | ANY,
    "version": ANY,
    "tags": ANY,
    "bid": ANY,
    "interrupted_count": ANY,
    "retry_count": ANY,
    "compressed": ANY,
    "original_job_size_bytes": ANY,
    "size_limiter": ANY,
    "deferred_by": ANY,
    "idempotency_key": ANY,
    "wal_locations": ANY,
    "dedup_wal_locations": st.dictionaries(TEXT, TEXT),
    "rescheduled_once": ANY,
    "error_message": ANY,
    "meta.user": ANY,
    "meta.feature_category": st.sampled_from(["billing", 'a"b', ""]) | ANY,
    "created_at": TIMES,
    "enqueued_at": TIMES,
    "scheduled_at": TIMES,
    "failed_at": TIMES,
    "retried_at": TIMES,
}
PAYLOADS = st.builds(
    lambda named, metas, name, args: {**named, **metas, "class": name, "args": args},
    st.fixed_dictionaries({}, optional=NAMED),
    st.dictionaries(TEXT.map("meta.{}".format), ANY, max_size=2),
    st.just("Job") | TEXT.filter(bool),
    st.lists(ANY, max_size=5) | st.lists(st.integers(0, 9) | st.text(min_size=100, max_size=200), max_size=120),
)
MORE = st.none() | st.dictionaries(
    TEXT | st.sampled_from(["extra.job_worker.rows", "retry_count", "jid"]), ANY, max_size=3
)


def exactly(line):
    """Return JSON text, in which 1 and true differ."""
    return json.dumps(line, sort_keys=True)


def on_the_wire(job):
    """Return the payload as a process reads it, and its bytes; JSON of other writers may hold 1e999."""
    data = json.dumps(job).replace("NaN", "1e999").replace("Infinity", "1e999").encode()
    try:
        return decode(data), data
    except PayloadError:
        return None, data  # for example a lone surrogate


# One log, as in a process.
@pytest.mark.invented_lines
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    job=PAYLOADS,
    loggable=st.booleans(),
    category=st.none() | st.sampled_from(["not_owned", "search"]),
    queue=TEXT,
    more=MORE,
    duration=st.floats(0, 1e6),
)
@example(
    job={"jid": 10**300, "class": "Job", "args": []},
    loggable=False,
    category=None,
    queue="default",
    more=None,
    duration=0.0,
)
@example(
    job={"jid": [float("inf")], "class": "Job", "args": []},
    loggable=False,
    category=None,
    queue="default",
    more=None,
    duration=0.0,
)
@example(
    job={"class": "Job", "args": [0], "compressed": 1},
    loggable=False,
    category=None,
    queue="q",
    more=None,
    duration=0.0,
)
@example(
    job={"class": "Job", "args": [], "meta.a": "x" * 3_000, "meta.b": "y" * 3_000, "meta.c": "z" * 5_000},
    loggable=False,
    category=None,
    queue="default",
    more=None,
    duration=0.0,
)
def test_line_pieces_give_the_fields_of_any_payload(both, job, loggable, category, queue, more, duration):
    with registry.isolated():
        declaration = declared(loggable=(0, 2) if loggable else (), feature_category=category) if category else None
        read, raw = on_the_wire(job)
        if read is None:
            return
        unit = UnitOfWork(queue, raw)
        started = both.log.start(read, unit, declaration)
        read["args"] = ["changed by a middleware"]
        both.log.end(started, unit, declaration, "done", duration, duration, more, None)
        start, end = both.take()
    read, _ = on_the_wire(job)
    expected = plainly(read, unit, declaration)
    label = f"{read['class']} JID-{expected['jid']}"
    time = iso_time(NOW)
    assert exactly(start) == exactly(
        {
            **expected,
            "severity": "INFO",
            "time": time,
            "message": f"{label}: start",
            "job_status": "start",
        }
    )
    assert exactly(end) == exactly(
        {
            **expected,
            "severity": "INFO",
            "time": time,
            "message": f"{label}: done: {duration:.6f} sec",
            "job_status": "done",
            "duration_s": round(duration, 6),
            "cpu_s": round(duration, 6),
            "completed_at": time,
            **{name: value for name, value in readable(more or {}).items() if name != "jid"},
        }
    )
    assert list(start)[: len(HEAD)] == list(end)[: len(HEAD)] == HEAD


def test_payload_without_escapes_has_the_same_fields(both):
    declaration = declared(feature_category="search")
    secret = "postgres://user:secret@db/app"
    for odd in ("a", 5, -(10**40), True, 1.5, None, "é\u2028\x7f", 'a"b', "%s%%", "x" * 5_000, secret, ["a"]):
        job = payload(args=[1, 2], correlation_id=odd, idempotency_key=odd, **{"meta.50%": "y", "meta.a": odd})
        # One escape anywhere, and each field is looked at alone.
        other = {**job, "unknown": "\\"}
        units = unit_of(job), unit_of(other)
        assert [b"\\" in unit.data for unit in units] == [odd == 'a"b', True]
        lines = [both.log.start(decode(unit.data), unit, declaration) for unit in units]
        first, second = both.take()
        assert lines[0] == lines[1]
        assert exactly(first) == exactly(second)
        assert odd != secret or first["meta.a"] == "postgres://***@db/app"


# --- the fields of a run ----------------------------------------------------------------------------------------------


def written(both, job, declaration=None, error=None, status="done", more=None):
    unit = unit_of(job)
    started = both.log.start(job, unit, declaration)
    both.log.end(started, unit, declaration, status, 0.25, 0.125, more, error)
    return both.take()


def test_end_line_repeats_the_start_line(lines):
    job = payload(version=2, correlation_id="c", **{"meta.caller_id": "POST /orders"})
    start, end = written(lines(), job, declared(urgency="high"))
    repeated = start.keys() - {"message", "job_status"}
    assert {name: end[name] for name in repeated} == {name: start[name] for name in repeated}
    assert end["message"] == f"Job JID-{job['jid']}: done: 0.250000 sec"
    assert (end["duration_s"], end["cpu_s"], end["completed_at"]) == (0.25, 0.125, iso_time(NOW))
    assert (end["meta.caller_id"], end["version"], end["target_duration_s"]) == ("POST /orders", 2, 10)


@pytest.mark.proves("F50")
@pytest.mark.parametrize(
    "odd", ["x" * 1_000_000, "\u20ac\n" * 500_000, ["y"] * 300_000], ids=["text", "escaped", "list"]
)
def test_long_names_are_cut_in_job_lines(lines, odd):
    long = {"jid": odd, "correlation_id": odd, "meta.caller_id": odd, "tags": odd}
    job, both = payload("Z" * 1_000_000, **long), lines()
    unit = UnitOfWork("q" * 1_000_000, dumps(job))
    both.log.end(both.log.start(job, unit, None), unit, None, "fail", 0.25, 0.125, None, ValueError("x"))
    for line in both.take():
        assert len(json.dumps(line)) < 30_000
        assert (line["class"], line["queue"]) == ("Z" * 253 + "...", "q" * 253 + "...")
        assert len(line["jid"]) == len(line["correlation_id"]) == MAX_NAME
        assert line["message"].startswith("Z" * 253 + "... JID-")
    same = payload(jid=odd, correlation_id=odd)
    start, _ = written(lines(), same)
    assert start["jid"] == start["correlation_id"]


@pytest.mark.invented_lines
@pytest.mark.proves("F50")
def test_long_names_are_cut_in_event_lines():
    with server_lines("info") as read:
        logs.logger(jid="x" * 1_000, queue=7).info("event", **{"class": "Job"}, other="y" * 1_000)
        (line,) = read()
    assert (len(line["jid"]), line["class"], line["queue"], len(line["other"])) == (MAX_NAME, "Job", 7, 1_000)


@pytest.mark.parametrize(("version", "shown"), [(3, 3), ("3", 3), ("x", 0), ({"a": "b"}, 0), (-1, 0), (None, 0)])
def test_version_in_lines_is_always_a_number(lines, version, shown):
    start, end = written(lines(), payload(version=version))
    assert (start.get("version"), end.get("version")) == (shown, shown)


def test_waits_have_gitlabs_names(lines):
    held = {"scheduled_at": NOW - 5, "enqueued_at": NOW - 4, "concurrency_limit_buffered_at": NOW - 3}
    start, end = written(lines(), payload(**held))
    for line in (start, end):
        waits = {name: round(value, 3) for name, value in line.items() if name.endswith(("latency_s", "duration_s"))}
        waits.pop("duration_s", None)
        assert waits == {
            "enqueue_latency_s": 1.0,
            "queue_duration_s": 1.0,
            "concurrency_limit_buffering_duration_s": 3.0,
            "scheduling_latency_s": 4.0,
        }


def test_arguments_are_texts_of_json(lines):
    job = payload(args=[5, 1.5, "text", {"a": [None, "é"]}, True, None, 7])
    start, _ = written(lines(), job, declared(loggable=(2, 3, 4, 5)))
    assert start["args"] == ["5", "1.5", "text", '{"a":[null,"é"]}', "true", "null", "7"]
    assert start["job_size_bytes"] == len('[5,1.5,"text",{"a":[null,"é"]},true,null,7]'.encode())
    hidden, _ = written(lines(), job)
    assert hidden["args"] == ["5", "1.5", *["[FILTERED]"] * 4, "7"]


def test_fields_of_gitlab_are_repeated_from_the_payload(lines):
    repeated = {
        "idempotency_key": "hash",
        "worker_data_consistency": "sticky",
        "wal_locations": {"main": "0/5"},
        "dedup_wal_locations": {"main": "0/6"},
        "deferred_count": 2,
    }
    start, _ = written(lines(), payload(**repeated, deferred_by="feature_flag"))
    assert {name: start[name] for name in repeated} == repeated
    assert (start["job_deferred_by"], start["version"]) == ("feature_flag", 0)


def test_policy_replaces_no_field_that_says_whose_line_it_is(lines):
    forged = {
        "jid": "other",
        "class": "Other",
        "job_status": "done",
        "time": 5,
        "message": "x",
        "dropped_reason": "why",
    }
    job, both = payload(), lines()
    _, end = written(both, job, status="dropped", more=forged)
    both.log.log_not_started(job, unit_of(job), None, "paused", forged)
    (held,) = both.take()
    for line, status in ((end, "dropped"), (held, "paused")):
        assert (line["jid"], line["class"], line["job_status"], line["time"]) == (
            job["jid"],
            "Job",
            status,
            iso_time(NOW),
        )
        assert line["message"].startswith(f"Job JID-{job['jid']}: {status}")
        assert line["dropped_reason"] == "why"


def test_lines_of_a_flood_of_held_jobs_are_bounded(lines, monkeypatch):
    both, job, clock = lines(), payload(), [0.0]
    monkeypatch.setattr(job_log.time, "monotonic", lambda: clock[0])

    def held(status, count):
        for _ in range(count):
            both.log.log_not_started(job, unit_of(job), None, status, {})
        return [line.get("unlogged_jobs") for line in both.take()]

    assert held("concurrency_limit", 250) == [None] * 100
    assert held("paused", 1) == [None]
    assert len(held("dropped", 150)) == 150
    clock[0] = 61.0
    assert held("concurrency_limit", 2) == [150, None]
    clock[0] = 122.0
    assert held("concurrency_limit", 1) == [None]


def test_end_line_of_a_failure_has_its_fields(lines):
    more = {"retry_count": 3, "retry_in_s": 60.0}
    start, end = written(lines(), payload(retry_count=2), declared(), ValueError("x"), "fail", more)
    assert (start["retry_count"], end["retry_count"], end["retry_in_s"]) == (2, 3, 60.0)
    assert (end["severity"], end["job_status"], end["exception.class"]) == ("WARN", "fail", "ValueError")


def test_lines_off_still_writes_failures_in_full(lines):
    job, declaration, error = payload(correlation_id="c", args=[1, "?"]), declared(), ValueError("x")
    _, full = written(lines(), job, declaration, error, "fail")
    off = lines(jobs=False)
    assert off.log.start(job, unit_of(job), declaration) is None
    assert written(off, job, declaration) == []
    (line,) = written(off, job, declaration, error, "fail")
    assert line == full | {"queue_duration_s": 1.0, "scheduling_latency_s": 1.0}  # as it began, 0.25 s before its end


def test_malformed_payload_has_no_line(lines):
    off = lines(jobs=False)
    off.log.end(None, UnitOfWork("q", b"{"), None, "fail", 0.0, 0.0, None, ValueError("x"))
    assert off.take() == []


def test_reloaded_class_gets_new_line_fields(lines):
    both = lines()
    old, _ = written(both, payload(), declared(urgency="high"))
    with registry.isolated():
        new, _ = written(both, payload(), declared(urgency="throttled"))
    assert (old["urgency"], new["urgency"]) == ("high", "throttled")
    assert "target_scheduling_latency_s" not in new


def test_class_without_owner_logs_its_callers_category(lines):
    one, shared = lines(), declared()
    found = [written(one, payload(**{"meta.feature_category": name}), shared) for name in ("billing", "search", "")]
    found.append(written(one, payload(), shared))
    categories = [tuple(line["feature_category"] for line in pair) for pair in found]
    assert categories == [("billing",) * 2, ("search",) * 2, ("not_owned",) * 2, ("not_owned",) * 2]


def test_class_with_owner_logs_its_category(lines):
    job = payload(**{"meta.feature_category": "billing"})
    with registry.isolated():
        start, _ = written(lines(), job, declared(feature_category="search"))
    assert (start["feature_category"], start["meta.feature_category"]) == ("search", "billing")


def test_lines_name_each_queue_of_a_class(lines):
    both, declaration, job = lines(), declared(), payload()
    for queue in ("a", "b", "a"):
        both.log.start(job, unit_of(job, queue), declaration)
    assert [line["queue"] for line in both.take()] == ["a", "b", "a"]


@pytest.mark.proves("I20")
def test_durations_are_never_negative_with_clock_skew(lines):
    start, end = written(lines(), payload(enqueued_at=NOW + 3600, scheduled_at=NOW + 7200))
    assert start["queue_duration_s"] == end["queue_duration_s"] == 0
    assert not [name for name, value in end.items() if name.endswith("_s") and value < 0]


@pytest.mark.proves("R53")
def test_missing_time_is_left_out_of_lines(lines):
    start, _ = written(lines(), payload(created_at=2.6e11))
    assert "created_at" not in start
    assert start["queue_duration_s"] == 1.25  # since it was enqueued


def test_unknown_names_are_not_cached(lines):
    both = lines()
    for number in range(5_000):
        job = payload(f"Unknown{number}", **{f"meta.{number}": 1})
        both.log.start(job, unit_of(job), None)
    assert len(both.take()) == 5_000
    assert len(both.log._class_fields) == 0
    assert len(both.log._payload_fields) < 1_000


def test_lines_have_the_id_of_their_thread(lines):
    both, job = lines(), payload()
    numbers = []

    def run():
        numbers.append(base36(threading.get_ident()))
        both.log.start(job, unit_of(job), None)

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert [line["tid"] for line in both.take()] == numbers


def test_arguments_are_cut_at_ten_kilobytes(lines):
    declaration = declared(loggable=range(64))
    start, _ = written(lines(), payload(args=["x" * 10_000, "y" * 240, "z"]), declaration)
    assert start["args"] == ["x" * 10_000, "y" * 240, "..."]
    start, _ = written(lines(), payload(args=["\0" * 128] * 64 + [1]), declaration)
    assert start["args"] == ["\0" * 128] * 64 + ["1"]


def test_wrapped_class_is_in_both_lines(lines):
    both = lines()
    job = payload("Sidekiq::ActiveJob::Wrapper", wrapped="MailJob", display_class="Mail", created_at=1_795_284_241_123)
    started = both.log.start(job, unit_of(job), None)
    both.log.end(started, unit_of(job), None, "done", 0.1, 0.1, None, None)
    for line in both.take():
        assert (line["class"], line["wrapped"], line["display_class"]) == (job["class"], "MailJob", "Mail")
        assert line["created_at"].endswith(".123Z")


def test_job_lines_escape_control_characters_of_names(lines):
    hostile_text = "E\x1b\x9b\u202e\u2066\u200b\u061c\u2028\x7f語"
    both = lines()
    job = payload(
        hostile_text,
        jid=hostile_text,
        tags=[hostile_text],
        **{"meta.user": hostile_text, "correlation_id": hostile_text},
    )
    unit = UnitOfWork(hostile_text, dumps(job))
    started = both.log.start(job, unit, None)
    both.log.end(started, unit, None, "fail", 0.5, 0.1, {"dropped_reason": hostile_text}, ValueError(hostile_text))
    both.log.end(started, unit, None, "done", 0.5, 0.1, None, None)
    assert both.server.writer.flush(timeout_s=20)
    text = os.pread(both.file.fileno(), 1 << 20, 0).decode()
    assert {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} == {"\n"}
    for line in both.take():
        assert (line["class"], line["jid"], line["queue"], line["meta.user"], line["tags"]) == (
            hostile_text,
            hostile_text,
            hostile_text,
            hostile_text,
            [hostile_text],
        )
