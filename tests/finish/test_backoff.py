import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.finish.backoff import jitter_s, retry_delay_s
from tests.tables import each_row

DRAWS = st.floats(0, 1, exclude_max=True)


@given(st.integers(0, 500), DRAWS)
def test_retry_delay_is_within_sidekiqs_bounds(count, draw):
    delay = retry_delay_s(count, lambda: draw)
    assert count**4 + 15 <= delay < count**4 + 15 + 10 * (count + 1)
    assert delay == count**4 + 15 + jitter_s(count, lambda: draw)
    assert delay.is_integer()


@each_row(("count", "draw", "delay"), [(0, 0.0, 15), (0, 0.99, 24), (1, 0.5, 26), (3, 0.0, 96), (24, 0.999, 332_040)])
def test_retry_delays_have_known_values(count, draw, delay):
    assert retry_delay_s(count, lambda: draw) == delay


def test_jitter_reaches_both_ends():
    assert (jitter_s(4, lambda: 0.0), jitter_s(4, lambda: 0.9999)) == (0, 49)


@pytest.mark.proves("R53")
@given(st.integers(0, 10**400), DRAWS)
def test_any_retry_count_gives_a_delay_redis_can_store(count, draw):
    assert 15 <= retry_delay_s(count, lambda: draw) < 1e12
