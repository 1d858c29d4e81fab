import base64
import json
import tracemalloc

import pytest

from framework.errors import PayloadError, PayloadLimitError
from framework.wire.job import decode
from framework.wire.malformed import dead_set_entry
from tests.harness import encoded, unwrapped
from tests.tables import each_row

NOW = 1_750_000_000.5
JID = "0123456789abcdef01234567"
NO_JOBS = [
    b"",
    b"\xff\x00 no JSON {",
    b"[1,2]",
    b"null",
    b'"text"',
    b"7",
    b"{}",
    b'{"class":"A","args":[NaN],"queue":"q"}',
    b'{"class":"A","args":["\xff"],"queue":"q"}',
    b'{"class":"A","args":' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"class":7,"args":[],"jid":[],"queue":{},"created_at":"x","tags":"no list","encrypt":true}',
]


def wrap(data: bytes, queue: str = "") -> bytes:
    with pytest.raises(PayloadError) as raised:
        decode(data)
    return dead_set_entry(data, raised.value, NOW, queue)


@each_row("data", NO_JOBS)
def test_dead_set_entry_wraps_the_exact_bytes(data):
    fields = json.loads(wrap(data, "reports"))
    assert base64.b64decode(fields.pop("aw_raw"), validate=True) == data
    assert len(fields.pop("jid")) == 24
    assert "cannot be read" in fields.pop("error_message")
    assert fields == {
        "class": "aw.Malformed",
        "args": [],
        "queue": "reports",
        "retry": 0,
        "created_at": NOW,
        "failed_at": NOW,
        "error_class": "framework.errors.PayloadError",
    }


def test_dead_set_entry_keeps_fields_of_an_object():
    data = b'{"args":[],"jid":"' + JID.encode() + b'","queue":"low","created_at":1750000000250}'
    fields = json.loads(wrap(data))
    assert (fields["jid"], fields["queue"], fields["created_at"]) == (JID, "low", 1_750_000_000.25)
    assert json.loads(wrap(data, "reports"))["queue"] == "reports"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"class":"A","jid":"%b","args":["cut' % JID.encode(), True),
        (b'{"jid":"%b","args":[{"jid":"another"}' % JID.encode(), False),
        (b"no id at all", False),
    ],
)
def test_dead_set_entry_keeps_the_jid_of_truncated_json(data, found):
    assert (json.loads(wrap(data))["jid"] == JID) is found


def test_dead_set_entry_wraps_once():
    once = wrap(b"[1,2]", "reports")
    retried = json.dumps({**json.loads(once), "queue": "low", "enqueued_at": NOW, "retry_count": 0, "tags": "x"})
    twice = wrap(retried.encode(), "low")
    assert unwrapped(twice) == b"[1,2]"
    assert json.loads(twice) == {**json.loads(once), "queue": "low"}


@pytest.mark.parametrize("fields", [{}, {"aw_raw": 7}, {"aw_raw": "no base64!"}])
def test_dead_set_entry_wraps_a_false_wrapper(fields):
    data = encoded("aw.Malformed", args=[], **fields)
    assert unwrapped(wrap(data)) == data


def test_dead_set_entry_of_a_displayable_job_is_unchanged():
    data = encoded("A", args=["!"], compressed=True, tags=["a"])
    assert dead_set_entry(data, PayloadError("not to be decompressed"), NOW) == data


@each_row("fields", [{"queue": None}, {"queue": 7}, {"tags": "x"}, {"encrypt": True}])
def test_dead_set_entry_wraps_what_ruby_cannot_display(fields):
    data = encoded("A", args=[], **fields)
    assert unwrapped(dead_set_entry(data, PayloadError("not to be decompressed"), NOW, "low")) == data


@pytest.mark.campaign
@pytest.mark.parametrize("behind", [b"", b" \n"])
def test_dead_set_entry_of_a_too_large_job_appends_the_error(behind):
    raw = encoded(args=[[[]] * 3_000_000], error_message="before") + behind
    with pytest.raises(PayloadLimitError) as raised:
        decode(raw)
    stored = dead_set_entry(raw, raised.value, NOW)
    assert stored.startswith(raw.rstrip()[:-1])
    assert stored.endswith(b"}" + behind)
    assert b"size_limit.decoded_limit" in stored[len(raw) - 10 :]
    assert json.loads(stored)["error_message"] == str(raised.value)


def test_dead_set_entry_above_a_lowered_limit_is_not_decoded():
    raw = encoded(args=[[[]] * 600_000])
    with pytest.raises(PayloadLimitError) as raised:
        decode(raw, 1_000_000)
    tracemalloc.start()
    try:
        stored = dead_set_entry(raw, raised.value, NOW)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stored.startswith(raw[:-1])
    assert peak < 10 * len(raw)  # decoded, it is some 38 MB


def test_dead_set_entry_wraps_a_too_large_list():
    raw = b"[" + b"[]," * 3_000_000 + b"1]"
    fields = json.loads(wrap(raw))
    assert base64.b64decode(fields["aw_raw"]) == raw
    assert "size_limit.decoded_limit" in fields["error_message"]


def test_dead_set_entry_of_compressed_job_sets_error_once():
    data = encoded(args=["text"], compressed=True)
    error = PayloadLimitError("its arguments are too much", 1_000_000, setting="size_limit.decoded_limit")
    once = dead_set_entry(data, error, NOW)
    assert json.loads(once) == {
        **json.loads(data),
        "error_class": "framework.errors.PayloadLimitError",
        "error_message": str(error),
        "failed_at": NOW,
    }
    assert dead_set_entry(once, error, NOW) == once
