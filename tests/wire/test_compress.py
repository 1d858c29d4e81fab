import base64
import json
import zlib

import pytest

from framework.errors import PayloadError
from framework.wire.compress import decompress_arguments, deflate_arguments, pack_backtrace
from framework.wire.json import dumps
from tests.harness import compressed as payload_of
from tests.tables import each_row

ARGUMENTS = [1, "ä" * 500, {"k": [None, 2**70]}]
SIZE = len(dumps(ARGUMENTS))
LIMIT = 10_000


def compressed(data=None, **fields):
    payload = payload_of(ARGUMENTS, **fields)
    if data is not None:
        payload["args"] = [base64.b64encode(data).decode()]
    return payload


def test_compressed_form_is_gitlabs(monkeypatch):
    monkeypatch.setattr("framework.wire.compress._isal_compress", None)
    raw = dumps(ARGUMENTS)
    text = deflate_arguments(raw)
    assert base64.b64decode(text, validate=True) == zlib.compress(raw, 5)  # level 5, no newlines (strict_encode64)
    assert [text.decode()] == compressed()["args"]


def test_decompress_restores_arguments_and_removes_markers():
    payload = compressed(other=7)
    decompress_arguments(payload, LIMIT)
    assert (payload["args"], payload["other"], payload["size_limiter"]) == (ARGUMENTS, 7, "validated")
    assert "compressed" not in payload
    assert "original_job_size_bytes" not in payload


@each_row("level", range(10))
def test_decompress_reads_any_level(level):
    payload = compressed(zlib.compress(dumps(ARGUMENTS), level))
    decompress_arguments(payload, LIMIT)
    assert payload["args"] == ARGUMENTS


def test_decompress_without_original_size_works():
    payload = compressed()
    del payload["original_job_size_bytes"]
    decompress_arguments(payload, LIMIT)
    assert payload["args"] == ARGUMENTS


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 3_000_000])
@pytest.mark.parametrize("lists", [0, 100_000], ids=["measured once", "measured twice"])
def test_decompress_restores_kept_and_not_kept_arguments(size, lists):
    frame = dumps([[[]] * lists, ""])
    arguments = [[[]] * lists, "a" * (size - len(frame))]
    payload = {"args": [deflate_arguments(dumps(arguments)).decode()], "compressed": True}
    decompress_arguments(payload, 10_000_000)
    assert payload == {"args": arguments}


def test_decompress_leaves_a_plain_payload():
    payload = {"class": "Job", "args": ["not base64!"]}
    decompress_arguments(payload, LIMIT)
    assert payload == {"class": "Job", "args": ["not base64!"]}


@pytest.mark.proves("R60")
def test_decompress_refuses_exactly_above_the_limit():
    exact = ["x" * (LIMIT - 4)]
    payload = payload_of(exact)
    decompress_arguments(payload, LIMIT)
    assert payload["args"] == exact
    with pytest.raises(PayloadError, match="decompressed_limit"):
        decompress_arguments(payload_of(exact), LIMIT - 1)
    with pytest.raises(PayloadError, match="decompressed_limit"):
        decompress_arguments(compressed(zlib.compress(b"0" * 50_000_000)), LIMIT)


CHANGED = "a middleware changed them"


@each_row(
    ("payload", "words"),
    [
        (compressed(args=[1]), CHANGED),
        (compressed(args=[]), CHANGED),
        (compressed(args=["a", "b"]), CHANGED),
        (compressed(args=ARGUMENTS), CHANGED),
        (compressed(args="text"), CHANGED),
        (compressed(args=["not base64!"]), "damaged"),
        (compressed(args=["ä"]), "damaged"),
        (compressed(args=[compressed()["args"][0][:40] + "\n" + compressed()["args"][0][40:]]), "damaged"),
        (compressed(args=[compressed()["args"][0][:-1]]), "damaged"),
        (compressed(b"not deflated"), "damaged"),
        (compressed(zlib.compress(dumps(ARGUMENTS))[:-4]), "cut off"),
        (compressed(b""), "cut off"),
        (compressed(zlib.compress(dumps(ARGUMENTS)) + b"more"), "4 bytes follow"),
        (compressed(zlib.compress(dumps(ARGUMENTS)) * 2), "bytes follow"),
        (compressed(original_job_size_bytes=SIZE - 1), f"is {SIZE - 1}, but its arguments inflate to {SIZE:,} bytes"),
        (compressed(original_job_size_bytes="many"), "is 'many', but"),
        (compressed(zlib.compress(dumps([2]))), f"is {SIZE}, but its arguments inflate to 3 bytes"),
        (compressed(zlib.compress(b'{"no":"list"}'), original_job_size_bytes=13), "not a list"),
        (compressed(zlib.compress(b"[1"), original_job_size_bytes=2), "EOF"),
        (compressed(zlib.compress(b"[NaN]"), original_job_size_bytes=5), "cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_decompress_of_damage_leaves_the_payload_unchanged(payload, words):
    before = dict(payload)
    with pytest.raises(PayloadError, match=words):
        decompress_arguments(payload, LIMIT)
    assert payload == before


def test_backtrace_has_sidekiqs_form():
    lines = ["a.py:1:in `f'", "b\ud800.py:2"]
    assert json.loads(zlib.decompress(base64.b64decode(pack_backtrace(lines), validate=True))) == [lines[0], "b?.py:2"]
