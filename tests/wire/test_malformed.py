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
def test_no_job_is_wrapped_with_its_exact_bytes(data):
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


def test_what_an_object_says_of_itself_is_kept():
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
def test_the_one_id_in_what_is_cut_off_is_kept(data, found):
    assert (json.loads(wrap(data))["jid"] == JID) is found


def test_what_is_wrapped_already_is_not_wrapped_twice():
    once = wrap(b"[1,2]", "reports")
    retried = json.dumps({**json.loads(once), "queue": "low", "enqueued_at": NOW, "retry_count": 0, "tags": "x"})
    twice = wrap(retried.encode(), "low")
    assert unwrapped(twice) == b"[1,2]"
    assert json.loads(twice) == {**json.loads(once), "queue": "low"}


@pytest.mark.parametrize("fields", [{}, {"aw_raw": 7}, {"aw_raw": "no base64!"}])
def test_an_object_that_only_claims_to_be_wrapped_is(fields):
    data = encoded("aw.Malformed", args=[], **fields)
    assert unwrapped(wrap(data)) == data


def test_a_job_that_ruby_shows_stays_as_it_is():
    data = encoded("A", args=["!"], compressed=True, tags=["a"])
    assert dead_set_entry(data, PayloadError("not to be decompressed"), NOW) == data


@each_row("fields", [{"queue": None}, {"queue": 7}, {"tags": "x"}, {"encrypt": True}])
def test_a_job_that_ruby_cannot_show_is_wrapped(fields):
    data = encoded("A", args=[], **fields)
    assert unwrapped(dead_set_entry(data, PayloadError("not to be decompressed"), NOW, "low")) == data


@pytest.mark.parametrize("behind", [b"", b" \n"])
def test_job_of_too_much_memory_keeps_its_bytes_and_is_told(behind):
    raw = encoded(args=[[[]] * 3_000_000], error_message="before") + behind
    with pytest.raises(PayloadLimitError) as raised:
        decode(raw)
    stored = dead_set_entry(raw, raised.value, NOW)
    assert stored.startswith(raw.rstrip()[:-1])
    assert stored.endswith(b"}" + behind)
    assert b"size_limit.decoded_limit" in stored[len(raw) - 10 :]
    assert json.loads(stored)["error_message"] == str(raised.value)


def test_job_above_a_lowered_limit_is_not_decoded():
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


def test_list_of_too_much_memory_is_wrapped():
    raw = b"[" + b"[]," * 3_000_000 + b"1]"
    fields = json.loads(wrap(raw))
    assert base64.b64decode(fields["aw_raw"]) == raw
    assert "size_limit.decoded_limit" in fields["error_message"]


def test_compressed_job_of_too_much_memory_is_told_once():
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
