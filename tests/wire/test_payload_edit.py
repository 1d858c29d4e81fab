import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import PayloadError
from framework.wire.json import dumps, loads
from framework.wire.payload_edit import raw_fields, rewrite, set_fields

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
