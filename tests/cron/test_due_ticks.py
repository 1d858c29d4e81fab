"""Check which ticks push a job, and which are missed, after a pause of any length."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.cron.due_ticks import MOST_CAUGHT_UP, due_ticks
from framework.cron_expression import CronExpression
from tests.tables import each_row

MINUTELY = CronExpression("* * * * *")
SETTLED = 1_800_000_000


@each_row(
    ("missed", "pause_s", "pushed", "skipped"),
    [
        ("once", 59, [], []),
        ("once", 60, [1], []),
        # Late, and not missed: a change of the leader or a restart of Redis.
        ("once", 120, [1, 2], []),
        ("skip", 120, [1, 2], []),
        ("all", 120, [1, 2], []),
        # The tick that is not missed does the work of those before it.
        ("once", 300, [4, 5], [1, 2, 3]),
        ("skip", 300, [4, 5], [1, 2, 3]),
        ("all", 300, [1, 2, 3, 4, 5], []),
    ],
)
def test_due_ticks_of_an_entry_of_every_minute(missed, pause_s, pushed, skipped):
    due = due_ticks(MINUTELY, SETTLED, SETTLED + pause_s, missed, 60)
    assert list(due.push) == [SETTLED + 60 * n for n in pushed]
    assert list(due.skipped) == [SETTLED + 60 * n for n in skipped]
    assert not due.more_skipped


@each_row(("missed", "pushed"), [("once", 1), ("skip", 0), ("all", 2)])
def test_due_ticks_that_are_all_missed(missed, pushed):
    daily = CronExpression("@daily")
    now = SETTLED + 2 * 86_400 + 3_600
    ticks = daily.latest_ticks(SETTLED, now, 9)[0]
    due = due_ticks(daily, SETTLED, now, missed, 60)
    assert due.push == tuple(ticks[2 - pushed :])
    assert due.skipped == tuple(ticks[: 2 - pushed])
    assert due.last == ticks[-1]


def test_due_ticks_of_a_long_pause_are_bounded():
    due = due_ticks(MINUTELY, SETTLED, SETTLED + 90 * 86_400, "all", 60)
    assert len(due.push) == MOST_CAUGHT_UP
    assert due.more_skipped


@pytest.mark.proves("R49", "I11")
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "0,20 */2 * * *", "*/13 * * * * *"]),
    st.sampled_from(["skip", "once", "all"]),
    st.lists(st.integers(1, 900), max_size=12),
)
def test_each_tick_is_due_once_whatever_the_pauses(text, missed, pauses):
    expression, settled, now = CronExpression(text), SETTLED, SETTLED
    seen = []
    for pause_s in pauses:
        now += pause_s
        due = due_ticks(expression, settled, now, missed, 60)
        assert not set(due.push) & set(due.skipped)
        seen += sorted((*due.push, *due.skipped))
        settled = due.last or settled
    ticks, more = expression.latest_ticks(SETTLED, now, 10_000)
    assert not more
    assert seen == ticks
