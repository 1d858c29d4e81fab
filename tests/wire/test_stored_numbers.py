"""Numbers that Redis keeps as text: whatever stands there, reading them raises nothing."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from framework.text import format_duration, format_time
from framework.wire.stored_numbers import stored_count, stored_number, stored_time

TEXTS = st.none() | st.binary(max_size=80) | st.text(max_size=80) | st.floats().map(repr) | st.integers().map(str)


@given(TEXTS)
@example("9" * 400)
@example(b"1e15")
@example("nan")
@example("-inf")
@example(b"\xff")
@example("\ud800")
@example("1e999")
def test_any_text_reads_as_a_number_that_can_be_shown(text):
    assert math.isfinite(stored_number(text))
    assert stored_count(text) >= 0
    at = stored_time(text)
    assert at is None or (format_time(at) and format_duration(at))


def test_numbers_read_as_they_were_written():
    assert [stored_time(one) for one in (b"1750000000.5", "0", "", None, "x")] == [
        1_750_000_000.5,
        0.0,
        None,
        None,
        None,
    ]
    assert [stored_count(one) for one in (b"12", "12.0", b"-1", "", None, str(2**53))] == [12, 12, 0, 0, 0, 2**53]
