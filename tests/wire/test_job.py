import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import PayloadError
from framework.wire.job import Job, decode, expiry_of, fix_expiry, timestamp, version_of, whole_number, wire_timestamp
from framework.wire.json import dumps
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
