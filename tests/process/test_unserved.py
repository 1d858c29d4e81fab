"""Find queues that no process serves from the process records in Redis; warn after two checks."""

import pytest

from framework.process import record
from framework.process.record import unserved_queues
from framework.process.unserved import UnservedWatch
from framework.route.topology import QueueLocation
from framework.timings import STANDARD
from tests.harness import register_process

# --- the records ------------------------------------------------------------------------------------------------------


def test_unserved_queues_without_a_process_are_all(each_redis):
    assert unserved_queues(each_redis, {"mail", "hello"}) == {"mail", "hello"}


@pytest.mark.parametrize(
    "info",
    [
        {"hostname": "web-1", "queues": ["default", "mail"]},
        {"hostname": "web-1", "capsules": {"default": {"weights": {"mail": 2}}}},
    ],
    ids=["sidekiq 6 and 7", "sidekiq 8"],
)
def test_unserved_queues_counts_a_process_of_ruby(each_redis, info):
    register_process(each_redis, info)
    assert unserved_queues(each_redis, {"mail", "hello"}) == {"hello"}


def test_unserved_queues_counts_a_quiet_process(redis):
    register_process(redis, {"queues": ["mail"]}, quiet="true")
    assert unserved_queues(redis, {"mail"}) == frozenset()


def test_unserved_queues_ignores_invalid_records(redis):
    redis.sadd("processes", "gone:1:0123456789ab", "list:1:0123456789ab", b"\xff:1:0123456789ab")
    redis.rpush("list:1:0123456789ab", "mail")
    register_process(redis, "no JSON", "odd:1:0123456789ab")
    register_process(redis, {"queues": 7, "capsules": 3}, "odder:1:0123456789ab")
    assert unserved_queues(redis, {"mail"}) == {"mail"}


def test_unserved_queues_of_a_namespace_counts_exact_names(redis):
    """A process expands a namespace at boot: a record that lists `shop` alone serves no later queue."""
    register_process(redis, {"queues": ["shop", "shop:mail"]})
    assert unserved_queues(redis, {"shop:mail", "shop:new"}) == {"shop:new"}


def test_unserved_queues_reads_at_most_the_record_limit(redis, monkeypatch):
    monkeypatch.setattr(record, "_MOST_RECORDS", 30)
    monkeypatch.setattr(record, "_RECORDS_AT_ONCE", 10)
    for number in range(25):
        register_process(redis, {"queues": [f"mail{number}"]}, f"web-{number}:1:0123456789ab")
    assert unserved_queues(redis, {"mail3", "hello"}) == {"hello"}
    for number in range(25, 60):
        register_process(redis, {"queues": [f"mail{number}"]}, f"web-{number}:1:0123456789ab")
    before = redis.info("commandstats")["cmdstat_hget"]["calls"]
    assert unserved_queues(redis, {"hello"}) == frozenset()  # the other records are not read
    assert redis.info("commandstats")["cmdstat_hget"]["calls"] - before == 30


def test_unserved_queues_reads_no_record_after_the_last_queue(redis, monkeypatch):
    monkeypatch.setattr(record, "_RECORDS_AT_ONCE", 10)
    for number in range(50):
        register_process(redis, {"queues": ["mail"]}, f"web-{number}:1:0123456789ab")
    redis.config_resetstat()
    assert unserved_queues(redis, {"mail"}) == frozenset()
    assert redis.info("commandstats")["cmdstat_hget"]["calls"] == 10


# --- warnings and their times -------------------------------------------------------------------------------------------

MAIL, HELLO = QueueLocation("mail", "main"), QueueLocation("hello", "second")


class WatchBench:
    """A watch whose checks find the queues that the test sets; records its reports."""

    def __init__(self, clock, *, in_group=False):
        self.missing = frozenset()
        self.clock = clock
        self.looks = 0
        self.lost, self.found = [], []
        self.places = {MAIL, HELLO}
        self.log_unserved, self.log_served = self.lost.append, self.found.append
        self.watch = UnservedWatch(self, in_group=in_group)

    def find(self):
        self.looks += 1
        return self.missing

    def step(self, *missing):
        self.missing = frozenset(missing)
        pause = self.watch.step()
        self.clock.advance(pause)
        return pause


def test_unserved_watch_warns_after_two_checks(set_clock):
    bench = WatchBench(set_clock)
    pauses = [bench.step(MAIL) for _ in range(3)]
    assert (bench.looks, bench.lost) == (2, [{MAIL}])
    assert pauses == [
        STANDARD.first_unserved_check_s,
        STANDARD.first_unserved_check_s,
        STANDARD.unserved_check_period_s,
    ]


def test_unserved_watch_in_a_group_waits_for_siblings(set_clock):
    assert WatchBench(set_clock, in_group=True).step(MAIL) > WatchBench(set_clock).step(MAIL)


def test_unserved_watch_ignores_a_late_sibling(set_clock):
    bench = WatchBench(set_clock)
    bench.step(MAIL)
    assert bench.step(MAIL) == STANDARD.first_unserved_check_s
    assert bench.step() == STANDARD.served_check_period_s
    assert not bench.lost + bench.found


def test_unserved_watch_reports_a_served_queue(set_clock):
    bench = WatchBench(set_clock)
    for _ in range(3):
        bench.step(MAIL, HELLO)
    bench.step(MAIL)
    assert (bench.lost, bench.found) == ([{MAIL, HELLO}], [{HELLO}])
    bench.step()
    assert bench.found == [{HELLO}, {MAIL}]


def test_unserved_watch_repeats_hourly_and_adds_new_at_once(set_clock):
    bench = WatchBench(set_clock)
    for _ in range(20):
        bench.step(MAIL)
    assert bench.lost == [{MAIL}]
    bench.step(MAIL, HELLO)
    bench.step(MAIL, HELLO)
    assert bench.lost == [{MAIL}, {MAIL, HELLO}]
    for _ in range(59):
        bench.step(MAIL, HELLO)
    assert len(bench.lost) == 2
    bench.step(MAIL, HELLO)
    assert len(bench.lost) == 3


def test_unserved_watch_warns_when_last_process_ends(set_clock):
    bench = WatchBench(set_clock)
    for _ in range(4):
        assert bench.step() in (STANDARD.first_unserved_check_s, STANDARD.served_check_period_s)
    assert bench.step(MAIL) == STANDARD.unserved_check_period_s
    bench.step(MAIL)
    assert bench.lost == [{MAIL}]


def test_unserved_watch_without_queues_reads_nothing(set_clock):
    bench = WatchBench(set_clock)
    bench.places = ()
    assert [bench.step() for _ in range(3)] == [STANDARD.served_check_period_s] * 3
    assert bench.looks == 0
