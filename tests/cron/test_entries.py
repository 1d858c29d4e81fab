"""Check where entries come from, and what a boot refuses."""

import json

import pytest

from framework.all_settings import load
from framework.cron.entries import collect_entries, schedule_problems, spread_offset_s
from framework.cron.orders import Order, decode_order
from framework.declare import registry
from framework.features.cron.settings import CronSection
from framework.route.loading import LoadedWorkers
from tests.cron.conftest import entry, worker
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
