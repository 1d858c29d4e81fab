"""Readings of one shard for the tests of rows, state, rates and screen: pure data."""

from framework.admin import HeldPlace, Queue, ShardStats, Stats, WorkerProcess
from framework.admin.queue_reader import QueueState
from framework.cli.top.facts import ShardFacts

NOW = 1_800_000_000.0


def queue(name, size=0, latency=0.0, *, paused=False, shard="main"):
    return Queue.of_state(QueueState(name, shard, size, latency, paused))


def process(identity="host:7:aabbccddeeff", *, runs=None, beat=NOW, queues=("mail",), busy=1, quiet=False):
    return WorkerProcess(
        *(
            "main",
            identity,
            "host",
            7,
            "shop",
            (),
            queues,
            5,
            busy,
            quiet,
            NOW - 60,
            beat,
            20_480,
            300,
            "1",
            False,
            runs,
            0.0,
            None,
        )
    )


def facts(*queues, processes=(), read_at=0.0, processed=0, held=(), entries=(), jobs=(), classes=(), shard="main"):
    stats = Stats(processed=processed, failed=processed // 10, busy=1, shards={shard: ShardStats()})
    return ShardFacts(shard, NOW, read_at, stats, queues, processes, jobs, held, entries, classes)


def held(name="Report", jobs=3, age=90.0):
    return HeldPlace("main", "waiting", name, jobs, NOW - age)
