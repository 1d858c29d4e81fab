import base64
import json
import zlib

import pytest

from framework.errors import PayloadError
from framework.wire.compress import compress_arguments, decompress_arguments, pack_backtrace
from framework.wire.json import dumps

ARGUMENTS = [1, "ä" * 500, {"k": [None, 2**70]}]
LIMIT = 10_000


def compressed(data=None, **fields):
    payload = {"class": "Job", "args": ARGUMENTS}
    compress_arguments(payload, dumps(ARGUMENTS))
    if data is not None:
        payload["args"] = [base64.b64encode(data).decode()]
    return {**payload, **fields}


def test_the_form_is_gitlabs():
    raw = dumps(ARGUMENTS)
    payload = {"class": "Job", "args": ARGUMENTS}
    size = compress_arguments(payload, raw)
    (text,) = payload["args"]
    assert base64.b64decode(text, validate=True) == zlib.compress(raw, 5)  # level 5, no newlines (strict_encode64)
    assert payload == {"class": "Job", "args": [text], "compressed": True, "original_job_size_bytes": len(raw)}
    assert size == len(dumps([text]))


def test_decompressing_restores_the_arguments_and_removes_both_marks():
    payload = compressed(other=7)
    decompress_arguments(payload, LIMIT)
    assert payload == {"class": "Job", "args": ARGUMENTS, "other": 7}


def test_a_plain_payload_stays_as_it_is():
    payload = {"class": "Job", "args": ["not base64!"]}
    decompress_arguments(payload, LIMIT)
    assert payload == {"class": "Job", "args": ["not base64!"]}


def test_a_bomb_is_refused_at_the_limit_and_not_a_byte_before():
    exact = json.dumps(["x" * (LIMIT - 4)]).encode()
    payload = compressed(zlib.compress(exact))
    decompress_arguments(payload, LIMIT)
    assert payload["args"] == ["x" * (LIMIT - 4)]
    with pytest.raises(PayloadError, match="decompressed_limit"):
        decompress_arguments(compressed(zlib.compress(exact)), LIMIT - 1)
    with pytest.raises(PayloadError, match="decompressed_limit"):
        decompress_arguments(compressed(zlib.compress(b"0" * 50_000_000)), LIMIT)


@pytest.mark.parametrize(
    "payload",
    [
        compressed(args=[1]),
        compressed(args=[]),
        compressed(args=["a", "b"]),
        compressed(args=["not base64!"]),
        compressed(args=["ä"]),
        compressed(b"not deflated"),
        compressed(zlib.compress(b'{"no":"list"}')),
        compressed(zlib.compress(b"[1")),
        compressed(zlib.compress(dumps(ARGUMENTS))[:-4]),
    ],
    ids=["number", "none", "two", "no base64", "no ascii", "no deflate", "no list", "no json", "cut off"],
)
def test_damage_and_changes_by_others_are_refused_and_leave_the_payload_alone(payload):
    before = dict(payload)
    with pytest.raises(PayloadError):
        decompress_arguments(payload, LIMIT)
    assert payload == before


def test_backtraces_have_sidekiqs_form():
    lines = ["a.py:1:in `f'", "b\ud800.py:2"]
    assert json.loads(zlib.decompress(base64.b64decode(pack_backtrace(lines), validate=True))) == [lines[0], "b?.py:2"]
