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
def test_each_fields_bytes_are_found_however_it_is_written(payload, indent, ascii_only):
    data = json.dumps(payload, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        expected = loads(data)
    except PayloadError:
        return  # a lone surrogate: no payload
    assert {name: loads(raw) for name, raw in raw_fields(data).items()} == expected


def test_what_can_be_written_is_written_as_always():
    data = b'{ "class" : "A", "args" : [1.50] }'
    payload = {**loads(data), "new": True}
    assert rewrite(data, payload) == dumps(payload)


@pytest.mark.proves("R51", "I5")
@pytest.mark.parametrize("odd", [b"1e999", b"-1e999", b"[" * 99 + b'"\\"]"' + b"]" * 99])
def test_what_cannot_be_written_again_keeps_its_bytes(odd):
    data = b'{"class":"A" , "args":[ ' + odd + b', 1.50 ],"old":1,"n":1,"gone":2}'
    payload = loads(data)
    del payload["gone"]
    payload |= {"old": "changed", "n": 1.0, "new": "\u00e4"}
    expected = b'{"class":"A","args":[ ' + odd + b', 1.50 ],"old":"changed","n":1.0,"new":"\xc3\xa4"}'
    assert rewrite(data, payload) == expected


def test_of_a_field_that_is_there_twice_the_last_counts():
    data = b'{"a":1,"b":1e999,"a":2}'
    assert rewrite(data, loads(data)) == b'{"a":2,"b":1e999}'


def test_a_new_value_that_cannot_be_written_is_refused():
    data = b'{"a":1}'
    with pytest.raises(PayloadError, match="not finite"):
        rewrite(data, {"a": 1, "b": float("inf")})


@pytest.mark.proves("R51", "I5")
@given(st.dictionaries(st.text(), JSON, max_size=5), st.sampled_from([None, 2]), st.text())
def test_fields_are_set_and_every_other_byte_stays(payload, indent, value):
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


def test_a_field_that_stands_there_twice_is_set_twice():
    """Readers differ in which of the two they believe."""
    data = b'{"queue":"a","\\u0071ueue" : "b" ,"args":[{"queue":"a"}]}'
    assert set_fields(data, {"queue": "c"}) == b'{"queue":"c","\\u0071ueue" : "c" ,"args":[{"queue":"a"}]}'
