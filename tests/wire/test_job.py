import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import PayloadError
from framework.wire.job import (
    Job,
    decode,
    expiry_of,
    fix_expiry,
    generate_jid,
    generate_jids,
    raw_fields,
    rewrite,
    set_fields,
    timestamp,
    version_of,
    whole_number,
    wire_timestamp,
)
from framework.wire.json import dumps, loads
from tests.tables import each_row


@each_row(
    ("value", "seconds"),
    [
        (1732125600.25, 1732125600.25),  # Sidekiq up to 7, and this framework
        (1732125600250, 1732125600.25),  # Sidekiq 8: milliseconds
        (1732125600, 1732125600.0),  # hand-written producers
        ("1732125600.25", 1732125600.25),  # Oj, ActiveJob
        ("tomorrow", None),
        (None, None),
        (True, None),
        ([], None),
    ],
)
def test_timestamp_reads_all_formats(value, seconds):
    assert timestamp(value) == seconds


@each_row("value", [1e300, -1e300, 10**400, "nan", "inf", "1e999", math.inf, -5.0])
def test_timestamp_of_an_invalid_value_is_none(value):
    assert timestamp(value) is None


@given(st.floats(0, 4e9) | st.integers(0, 4_000_000_000))
def test_wire_timestamp_always_has_a_fraction(seconds):
    written = dumps(wire_timestamp(float(seconds))).decode()
    assert isinstance(json.loads(written), float)
    assert not json.loads(written).is_integer()
    assert abs(json.loads(written) - seconds) < 1e-5


@each_row(
    ("value", "version"),
    [
        (0, 0),
        (7, 7),
        (10**30, 10**30),
        ("7", 7),  # from an environment variable
        ("0007", 7),
        ("1" * 18, int("1" * 18)),
        ("1" * 19, 0),
        ("", 0),
        ("two", 0),
        ("-1", 0),
        (" 1", 0),
        ("１", 0),
        ("²", 0),
        (-1, 0),
        (1.0, 0),
        (True, 0),
        (None, 0),
        ([1], 0),
    ],
)
def test_version_of_an_invalid_value_is_0(value, version):
    assert version_of({"version": value}) == version
    assert version_of({}) == 0


@each_row(
    ("data", "reason"),
    [
        (b"\xff\x00", "expected"),
        (b"[]", "not an object: list"),
        (b'{"args":[]}', "no class"),
        (b'{"class":"","args":[]}', "no class"),
        (b'{"class":1,"args":[]}', "no class"),
        (b'{"class":"A","args":{}}', "not a list"),
        (b'{"class":"A"}', "not a list"),
    ],
)
def test_decode_of_a_malformed_payload_says_why(data, reason):
    with pytest.raises(PayloadError, match=reason):
        decode(data)


def test_decode_keeps_every_field():
    fields = {"class": "A", "args": [2**80], "bid": "x", "wrapped": None, "at": 1.5}
    assert decode(dumps(fields)) == fields


@pytest.mark.proves("R53")
def test_job_properties_accept_any_values():
    job = Job(
        {
            "class": "A",
            "jid": "j",
            "queue": "q",
            "args": [1],
            "retry_count": 2,
            "interrupted_count": 1,
            "enqueued_at": 5,
        }
    )
    assert (job.worker, job.jid, job.queue, job.args) == ("A", "j", "q", [1])
    assert (job.retry_count, job.interrupted_count, job.enqueued_at) == (2, 1, 5.0)
    odd = Job({"retry_count": "2", "interrupted_count": None, "enqueued_at": {}})
    assert (odd.worker, odd.jid, odd.queue, odd.args) == ("", "", "", [])
    assert (odd.retry_count, odd.interrupted_count, odd.enqueued_at) == (None, 0, None)


def test_whole_number_is_strict():
    assert [whole_number(value) for value in (3, 0, -1, True, 3.0, "3", None)] == [3, 0, -1, None, None, None, None]


@each_row(
    ("fields", "moment"),
    [
        ({}, None),
        ({"expires_in": 60}, None),
        ({"expires_in": 60, "created_at": 100.5}, 160.5),
        ({"expires_in": 60, "created_at": 100.5, "enqueued_at": 200.5}, 260.5),
        ({"expires_in": 60, "created_at": 1_700_000_000_000}, 1_700_000_060.0),
        ({"expires_in": 0.5, "created_at": 100.5}, 101.0),
        ({"expires_in": 60, "expiry": 150.5, "enqueued_at": 200.5}, 150.5),
        ({"expires_in": "60", "expiry": "150.5"}, 150.5),
        ({"expires_in": 60, "expiry": "soon", "enqueued_at": 200.5}, 260.5),
        ({"expiry": 150.5}, None),
        *(({"expires_in": wrong, "enqueued_at": 200.5}, None) for wrong in ("60", None, True, 0, -1, [60], "x")),
        ({"expires_in": 10**400, "enqueued_at": 200.5}, 253_402_301_000.5),
    ],
)
def test_expiry_counts_from_the_enqueue_unless_fixed(fields, moment):
    assert expiry_of(fields) == moment
    fixed = dict(fields)
    fix_expiry(fixed)
    assert fixed.get("expiry") == (fields.get("expiry") if moment is None else pytest.approx(moment, abs=2e-6))


def test_jids_are_24_hex_digits_and_differ():
    drawn = [generate_jid(), *generate_jids(1000)]
    assert len(set(drawn)) == 1001
    assert all(re.fullmatch(r"[0-9a-f]{24}", jid) for jid in drawn)
    assert generate_jids(0) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.proves("R51", "I5")
@given(st.dictionaries(st.text(), JSON, max_size=5), st.sampled_from([None, 2]), st.booleans())
def test_raw_fields_finds_values_in_any_spelling(payload, indent, ascii_only):
    data = json.dumps(payload, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        expected = loads(data)
    except PayloadError:
        return  # a lone surrogate: no payload
    assert {name: loads(raw) for name, raw in raw_fields(data).items()} == expected


def test_rewrite_of_plain_values_is_dumps():
    data = b'{ "class" : "A", "args" : [1.50] }'
    payload = {**loads(data), "new": True}
    assert rewrite(data, payload) == dumps(payload)


@pytest.mark.proves("R51", "I5")
@pytest.mark.parametrize("odd", [b"1e999", b"-1e999", b"[" * 99 + b'"\\"]"' + b"]" * 99])
def test_rewrite_keeps_bytes_that_cannot_be_written(odd):
    data = b'{"class":"A" , "args":[ ' + odd + b', 1.50 ],"old":1,"n":1,"gone":2}'
    payload = loads(data)
    del payload["gone"]
    payload |= {"old": "changed", "n": 1.0, "new": "\u00e4"}
    expected = b'{"class":"A","args":[ ' + odd + b', 1.50 ],"old":"changed","n":1.0,"new":"\xc3\xa4"}'
    assert rewrite(data, payload) == expected


def test_raw_fields_uses_the_last_of_a_repeated_field():
    data = b'{"a":1,"b":1e999,"a":2}'
    assert rewrite(data, loads(data)) == b'{"a":2,"b":1e999}'


def test_rewrite_refuses_a_new_value_that_is_no_json():
    data = b'{"a":1}'
    with pytest.raises(PayloadError, match="not finite"):
        rewrite(data, {"a": 1, "b": float("inf")})


@pytest.mark.proves("R51", "I5")
@given(st.dictionaries(st.text(), JSON, max_size=5), st.sampled_from([None, 2]), st.text())
def test_set_fields_keeps_every_other_byte(payload, indent, value):
    payload = {**payload, "queue": "old", "class": "A"}
    data = json.dumps(payload, indent=indent).encode()
    try:
        expected = {**loads(data), "queue": value, "added": value}
    except PayloadError:
        return  # a lone surrogate: no payload
    changed = set_fields(data, {"queue": value, "added": value})
    assert loads(changed) == expected
    assert set_fields(data, {"queue": "old"}) == data
    assert [raw for name, raw in raw_fields(changed).items() if name not in ("queue", "added")] == [
        raw for name, raw in raw_fields(data).items() if name not in ("queue", "added")
    ]


def test_set_fields_sets_a_repeated_field_twice():
    """Readers differ in which of the two they believe."""
    data = b'{"queue":"a","\\u0071ueue" : "b" ,"args":[{"queue":"a"}]}'
    assert set_fields(data, {"queue": "c"}) == b'{"queue":"c","\\u0071ueue" : "c" ,"args":[{"queue":"a"}]}'
