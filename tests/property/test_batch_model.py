"""Compare the batches of a server with a model of them, move by move, and both with what a batch promises."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.features.batches import keys as batch_keys
from framework.features.batches.payload import EVENTS, Callback
from framework.features.batches.push import PUSH as WRITING
from framework.features.batches.push import BatchGroup, BatchWrite, NewBatch
from framework.features.batches.store import CHANGE as CHANGING
from framework.features.batches.store import read_batches
from framework.store.script import FINISH
from framework.wire import keys
from framework.wire.resources import JobResources
from framework.wire.waiters import awaited_job_of
from tests.harness import examples
from tests.property.batch_model import BatchModel

BIDS = ("aw-0", "aw-1", "aw-2")
"""Each is nested in the one before."""

ENDS = ("done", "failed", "dead", "removed", "skipped", "revived")

PUSH = st.tuples(st.just("push"), st.sampled_from(BIDS), st.integers(0, 3), st.sampled_from(["", "opens", "closes"]))
CHANGE = st.tuples(st.just("change"), st.sampled_from(BIDS), st.sampled_from(["invalidate", "cancel", "delete"]))
END = st.tuples(st.just("end"), st.sampled_from(BIDS), st.integers(0, 5), st.sampled_from(ENDS))


class Both:
    """The same moves on a server and in the model; each job is where it can be: waiting, dead or gone."""

    def __init__(self, redis) -> None:
        self.redis = redis
        self.model = BatchModel()
        self.waiting: dict[str, list[str]] = {bid: [] for bid in BIDS}
        self.dead: dict[str, list[str]] = {bid: [] for bid in BIDS}
        self.open: set[str] = set()
        self.number = 0
        self.seen: set[str] = set()

    def push(self, bid, count, mode):
        if (mode == "opens") == (bid in self.open) and mode:
            return
        jobs = [f'{{"jid":"{self.number + one}"}}' for one in range(count)]
        self.number += count
        place = BIDS.index(bid)
        callbacks = {event: [Callback("callbacks", f'{{"jid":"{bid} {event}"}}'.encode())] for event in EVENTS}
        new = None
        if self.model.fields(bid) is None:
            if mode == "closes":
                return
            new = NewBatch("", BIDS[place - 1] if place else "", "", callbacks)
        groups = [BatchGroup("q", [job.encode() for job in jobs])] if jobs else []
        write = BatchWrite(
            bid, f"t{self.number} {len(self.waiting[bid])} {mode}", 60, new, mode == "opens", mode == "closes", groups
        )
        places = [
            batch_keys.batch(bid),
            batch_keys.BATCHES,
            "token",
            keys.QUEUES,
            keys.SCHEDULE,
            *([keys.queue("q")] if jobs else []),
        ]
        self.redis.delete("token")
        code, *_ = WRITING(self.redis, places, [write.head(60_000), *write.payloads()])
        reply = self.model.write(write, list)
        assert code == reply.code
        if code == 1:
            self.waiting[bid] += [str(self.number - count + one) for one in range(count)]
            self.open = (self.open | {bid} if mode == "opens" else self.open - {bid}) if mode else self.open

    def change(self, bid, action):
        done = CHANGING(self.redis, [batch_keys.batch(bid), batch_keys.BATCHES, keys.CANCELLED], [bid, action, "", ""])
        assert done == self.model.change(bid, action, "", b"")
        self.open.discard(bid) if action != "invalidate" else None
        if action == "delete":
            self.waiting[bid], self.dead[bid] = [], []

    def end(self, bid, index, how):
        jobs = self.dead[bid] if how == "revived" else self.waiting[bid]
        if not jobs:
            return
        jid = jobs[index % len(jobs)]
        if how != "failed":
            jobs.remove(jid)
        if how in ("dead", "revived"):
            (self.dead if how == "dead" else self.waiting)[bid].append(jid)
        self.redis.rpush("working", jid)
        FINISH(
            self.redis,
            ["working"],
            [jid, JobResources(awaited=awaited_job_of({"bid": bid, "jid": jid}), end_word=how).on_end()],
        )
        self.model.count(bid, jid, how)

    def compare(self):
        fired = Counter(data.decode().split('"')[3] for data in self.redis.lrange(keys.queue("callbacks"), 0, -1))
        assert not fired or max(fired.values()) == 1 or self.deleted, fired
        self.take_callbacks(fired)
        assert fired == Counter(self.model.enqueued)
        for bid in BIDS:
            found = self.model.fields(bid)
            (real,) = read_batches(self.redis, "main", [bid]) or [None]
            assert (real is None) == (found is None)
            if real is None:
                continue
            fields, failed, dead = found
            for name in ("total", "pending", "removed", "children"):
                assert getattr(real, name) == max(0, int(fields.get(name, 0))), (bid, name)
            assert (real.failures, real.dead) == (failed + dead, dead)
            for event in EVENTS:
                assert (getattr(real, f"{event}_at") is None) == (f"{event}_at" not in fields), (bid, event)
            self.promise(real)

    deleted = False

    def take_callbacks(self, fired):
        """A callback of a nested batch is a job of the batch around it."""
        for callback in fired.keys() - self.seen:
            self.seen.add(callback)
            place = BIDS.index(callback.split()[0])
            if place and self.model.fields(BIDS[place - 1]) is not None:
                self.waiting[BIDS[place - 1]].append(callback)

    def promise(self, real):
        """The promises of a batch without nested ones, from the jobs alone."""
        bid = real.bid
        if real.children or bid in self.open:
            return
        callbacks = real.pending - real.removed - len(self.waiting[bid]) - len(self.dead[bid])
        assert callbacks >= 0, "only callbacks of nested batches, which are deleted, are pending besides"
        if not callbacks and not self.waiting[bid]:
            assert (real.finished, real.complete) == (True, True)
            assert real.succeeded == (real.pending == 0 and real.cancelled_at is None)


@pytest.mark.proves("R45", "I21")
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(moves=st.lists(st.one_of(PUSH, PUSH, END, END, END, CHANGE), max_size=30))
def test_batches_of_a_server_equal_those_of_a_model(redis, moves):
    redis.flushall()
    both = Both(redis)
    for bid in BIDS:
        both.push(bid, 1, "")
    for name, *arguments in moves:
        both.deleted = both.deleted or arguments[-1] == "delete"
        getattr(both, name)(*arguments)
        both.compare()
    for bid in reversed(BIDS):
        while both.waiting[bid]:
            both.end(bid, 0, "done")
            both.compare()
