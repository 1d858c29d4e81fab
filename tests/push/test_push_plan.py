"""Compare the payloads of the template with those that client middlewares see."""

import json
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from framework.declare import registry
from framework.declare.request import bind_all, json_chunks
from framework.errors import ArgumentsError, ExceedLimitError
from framework.process_clock import process_clock
from framework.push.argument_checks import SizeLimiter, SizeLimits
from framework.push.normalize import Normalizer
from framework.push.push_plan import JobTemplate
from framework.telemetry import context
from framework.wire.compress import decompress_arguments
from framework.wire.job import wire_timestamp, wire_timestamp_json
from framework.wire.json import dumps_exact
from tests.harness import examples
from tests.push.conftest import worker

JID = "0123456789abcdef01234567"
QUEUE = "50%b"  # not a valid queue name; formatting with % must keep it
SMALL = SizeLimits(compression_threshold=60, limit=90)

texts = st.text(alphabet=st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from('"\\,[]{}%\n\r\0é'))) | (
    st.sampled_from(['],"",[', "]\n[", "NaN", "Infinity", "%b", "%", '","jid":"', "\x7f\u2028"])
)
numbers = st.integers() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | numbers | texts
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
arguments = st.lists(plain, max_size=4) | st.lists(values, max_size=4)
facts = st.dictionaries(texts, plain, max_size=3).map(context.meta)
contexts = st.builds(
    lambda fields, chain: fields if chain is ... else {**fields, context.CORRELATION_ID: chain},
    facts,
    st.just(...) | texts | st.none(),
)
attributes = st.fixed_dictionaries(
    {},
    optional={
        "version": st.integers(1, 9),
        "retry": st.booleans() | st.integers(0, 25),
        "retry_for": st.just(timedelta(hours=1)),
        "retry_queue": st.just("slow"),
        "dead": st.booleans(),
        "backtrace": st.booleans() | st.integers(1, 20),
        "tags": st.just(("a", "b:c")),
        "queue_namespace": st.just("ns"),
        "expires_in": st.just(timedelta(minutes=1)),
        "big_payload": st.booleans(),
        "compress": st.booleans(),
    },
)
options = st.fixed_dictionaries(
    {},
    optional={
        "queue": st.sampled_from(["urgent", "a:b"]),
        "retry": st.booleans() | st.integers(0, 25),
        "retry_for": st.just(timedelta(seconds=90)),
        "dead": st.booleans(),
        "tags": st.just(("c",)),
    },
)
limits = st.sampled_from(
    [
        SizeLimits(),
        SMALL,
        SizeLimits("track", 60, 90),
        SizeLimits("track", 60, 0),
        SizeLimits("compress", 60, 0),
        SizeLimits("compress", 0, 90),
        SizeLimits("compress", 0, 0),
        SizeLimits("compress", 60, 90, 120),
        SizeLimits("compress", 90, 60),
        SizeLimits("compress", 60, 90, uncompressed_queues=("urg*",)),
    ]
)
times = st.floats(0, 4_000_000_000) | st.integers(0, 4_000_000_000).map(float)


class RecordingLimiter(SizeLimiter):
    """A limiter that is its own reporter, and records what it reports."""

    def __init__(self, size_limits):
        self.reports = []
        super().__init__(size_limits, self)

    def report(self, error):
        self.reports.append(facts_of(error))


def facts_of(error):
    return (error.worker_class, error.size, error.size_limit, error.setting)


def made(declaration, args, chosen, fields, now, limiter, *, waits):
    """Return the payload of the normalizer, or its error."""
    normalizer = Normalizer()
    with process_clock.override(lambda: now):
        payload = normalizer.payload(
            declaration, args, JID, chosen.get("queue") or QUEUE, options=chosen, job_context=fields
        )
        if not waits:
            payload["enqueued_at"] = normalizer.now()
    try:
        return json.loads(limiter.encode(payload, big_payload=declaration.big_payload, compress=declaration.compress))
    except ExceedLimitError as error:
        return facts_of(error)


def tried(write):
    try:
        return [json.loads(data, object_pairs_hook=unrepeated) for data in write()]
    except ExceedLimitError as error:
        return facts_of(error)


def unrepeated(pairs):
    assert len(dict(pairs)) == len(pairs), "a name is repeated"
    return dict(pairs)


def expected(every):
    return next((facts for facts in every if isinstance(facts, tuple)), every)


@settings(max_examples=examples(300))
@example({}, {}, [["x" * 300]], {}, 0.0, SizeLimits("track", 100, 200), False)  # a report of an oversize job
@given(attributes, options, st.lists(arguments, min_size=1, max_size=5), contexts, times, limits, st.booleans())
def test_template_equals_the_payload_of_the_normalizer(declared, chosen, jobs, fields, now, size_limits, waits):
    with registry.isolated():
        declaration = worker(**declared).declaration()
    limiter, other = RecordingLimiter(size_limits), RecordingLimiter(size_limits)
    template = JobTemplate(declaration, chosen.get("queue") or QUEUE, chosen, other)
    general = [made(declaration, args, chosen, fields, now, limiter, waits=waits) for args in jobs]
    jid, time = JID.encode(), wire_timestamp_json(now)
    for args, wanted in zip(jobs, general, strict=True):
        data = dumps_exact(args, outer_levels=1)
        found = tried(
            lambda data=data: [template.encode(template.fit_to_limit(data), jid, time, fields, scheduled=waits)]
        )
        assert found == ([wanted] if isinstance(wanted, dict) else wanted)
    assert other.reports == limiter.reports
    (part,) = json_chunks(declaration.signature, map(tuple, jobs))
    lines = part.lines.split(b"\n")
    assert part.longest_line == max(map(len, lines))
    many = [jid] * len(jobs)
    found = tried(
        lambda: template.encode_many(
            [template.fit_to_limit(line) for line in lines], many, time, fields, scheduled=waits
        )
    )
    assert found == expected(general)


@given(st.lists(st.lists(plain, max_size=4), min_size=1, max_size=8))
def test_json_chunks_keep_arguments_exactly(jobs):
    with registry.isolated():
        signature = worker().declaration().signature
    (part,) = json_chunks(signature, jobs)
    assert [json.loads(line) for line in part.lines.split(b"\n")] == jobs
    assert bind_all(signature, jobs) == jobs


@given(times)
def test_timestamp_as_json_is_the_same_time(seconds):
    assert float(wire_timestamp_json(seconds)) == wire_timestamp(seconds)
    assert wire_timestamp_json(seconds).partition(b".")[2].strip(b"0")


def test_template_compresses_large_arguments():
    with registry.isolated():
        declaration = worker().declaration()
    template = JobTemplate(declaration, "q", {}, RecordingLimiter(SizeLimits()))
    args = ["é" * 60_000]
    (payload,) = template.encode_many(
        [template.fit_to_limit(dumps_exact(args, outer_levels=1))], [JID.encode()], b"1.5", {}, scheduled=False
    )
    job = json.loads(payload)
    assert (job["compressed"], job["original_job_size_bytes"]) == (True, 120_004)
    decompress_arguments(job, 10**9)
    assert job["args"] == args


@pytest.mark.parametrize("fields", [{"meta.a": float("nan")}, {"meta.a": "\ud800"}, {"meta.a": object()}])
def test_template_refuses_a_context_that_is_no_json(fields):
    with registry.isolated():
        declaration = worker().declaration()
    template = JobTemplate(declaration, "q", {}, RecordingLimiter(SizeLimits()))
    with pytest.raises(ArgumentsError, match="Job: refused"):
        template.encode(b"[]", JID.encode(), b"1.5", fields, scheduled=False)
