"""Check where entries come from, and what a boot refuses."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.all_settings import load
from framework.cron_expression import CronExpression
from framework.declare import registry
from framework.features.cron.entries import (
    MOST_CAUGHT_UP,
    Order,
    collect_entries,
    decode_order,
    due_ticks,
    schedule_problems,
    spread_offset_s,
)
from framework.features.cron.settings import CronSection
from framework.route.router import LoadedWorkers
from tests.features.cron.conftest import entry, worker
from tests.harness import examples
from tests.tables import each_row

KNOWN_OFFSETS = [371, 727]


@pytest.fixture
def configured(tmp_path):
    def configure(**entries):
        folder = tmp_path / "config"
        folder.mkdir(exist_ok=True)
        (folder / "redis.yml").write_text('{"shards": {"main": {"url": "embedded"}}}')
        (folder / "schedule.yml").write_text(json.dumps({"schedule": entries}))
        return load({}, tmp_path)

    return configure


def test_entry_of_a_class_has_its_wire_name(configured):
    worker(cron="@hourly", time_zone="Europe/Berlin")
    (found,) = collect_entries(configured()).values()
    assert (found.name, found.expression.text, found.expression.zone) == ("TickWorker", "@hourly", "Europe/Berlin")
    assert (found.missed, found.overlap, found.enabled) == ("once", "run", True)


@pytest.mark.parametrize("name", ["nightly", "TickWorker"])
def test_entry_of_the_file_replaces_that_of_the_class(configured, name):
    worker(cron="@hourly")
    facts = {"cron": "@daily", "class": "TickWorker", "missed": "all", "overlap": "skip", "enabled": False}
    (found,) = collect_entries(configured(**{name: facts})).values()
    assert (found.name, found.expression.text) == (name, "@daily")
    assert (found.missed, found.overlap, found.enabled) == ("all", "skip", False)


def test_offset_is_stable_and_differs_by_entry_and_place():
    home = CronSection(application="shop", installation="berlin")
    names = [f"entry_{number}" for number in range(300)]
    offsets = [spread_offset_s(name, 60, home) for name in names]
    assert min(offsets) == 0
    assert max(offsets) == 59
    # All seconds are used, and none by many.
    assert max(map(offsets.count, range(60))) < 20
    # The values of an earlier release: a deploy moves no entry.
    assert [spread_offset_s(name, 3_600, home) for name in ("daily", "hourly")] == KNOWN_OFFSETS
    for other in (CronSection(application="shop"), CronSection(application="mail", installation="berlin")):
        assert [spread_offset_s(name, 60, other) for name in names] != offsets
    # Without a spread of its own, that of the settings.
    assert spread_offset_s("daily", None, home) == spread_offset_s("daily", 0, CronSection(spread=9)) == 0
    assert spread_offset_s("daily", None, home.model_copy(update={"spread": 3_600})) == KNOWN_OFFSETS[0]


def loaded(settings, *, whole=False):
    declarations = [one.declaration() for one in registry.workers()]
    return LoadedWorkers(settings, declarations, from_modules=True, whole=whole)


def test_spread_of_class_file_and_settings_gives_the_offset(configured):
    worker(cron="@hourly", spread=3_600)
    assert collect_entries(configured())["TickWorker"].offset_s == spread_offset_s("TickWorker", 3_600, CronSection())
    facts = {"cron": "@daily", "class": "TickWorker"}
    assert collect_entries(configured(nightly={**facts, "spread": 60}))["nightly"].offset_s == (
        spread_offset_s("nightly", 60, CronSection())
    )
    # The spread of the class belongs to its attribute cron.
    assert collect_entries(configured(nightly=facts))["nightly"].offset_s == 0


def test_unknown_class_is_a_problem_where_all_modules_are_loaded(configured):
    worker()
    settings = configured(nightly={"cron": "@daily", "class": "TikWorker"})
    (problem,) = schedule_problems(loaded(settings, whole=True))
    assert problem.file.endswith("config/schedule.yml")
    assert problem[1:] == (
        "schedule.nightly.class",
        "no worker has the wire name 'TikWorker' (did you mean 'TickWorker'?)",
    )
    assert not list(schedule_problems(loaded(settings)))


def test_arguments_that_do_not_fit_are_a_problem(configured):
    worker(perform=lambda self, days: None)
    settings = configured(nightly={"cron": "@daily", "class": "TickWorker"})
    (problem,) = schedule_problems(loaded(settings))
    assert problem.key == "schedule.nightly.args"
    assert "argument 'days'" in problem.message
    assert not list(
        schedule_problems(loaded(configured(a={"cron": "@daily", "class": "TickWorker", "args": [1]}), whole=True))
    )


def test_order_changes_an_entry_and_its_fingerprint():
    one = entry(args=(1,))
    order = Order(enabled=False, cron="@daily", args=[2], reason="quiet", set_by="ada", set_at=5.5)
    changed = one.ordered(decode_order(order.encode()))
    assert (changed.enabled, changed.expression.text, changed.args) == (False, "@daily", (2,))
    assert changed.order == order
    assert changed.fingerprint != one.fingerprint
    assert one.ordered(Order()) == one
    # Arguments do not decide the ticks.
    assert entry(args=(2,)).fingerprint == one.fingerprint


@each_row("data", [b"", b"5", b"{", b'{"cron": "x"}', b'{"set_at": "x"}', b'{"cron": 5}'])
def test_order_that_cannot_be_read_is_none(data):
    assert decode_order(data) is None


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
@settings(max_examples=examples(40), deadline=None)
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
