"""Explain which deduplication lock a job owns."""

from typing import Any

import redis

from framework.admin.explain_reader import ExplainReader, ShownFacts
from framework.features.deduplication.store import OUTLIVED
from framework.telemetry.counters import series_name
from framework.text import Sentence, decode_escaped, format_count, format_duration
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import stored_count
from framework.wire.resources import WAITING_PAYLOAD, lock_of


def describe_lock(client: "redis.Redis", payload: Payload) -> list[str]:
    """Return one text about the job's lock, nothing for a job without one. Raises redis errors."""
    lock = lock_of(payload)
    if lock is None:
        return []
    pipeline: Any = client.pipeline()
    pipeline.hgetall(lock.key)
    pipeline.pttl(lock.key)
    pipeline.zmscore(keys.CANCELLED, [lock.owner, lock.bid])
    pipeline.time()
    fields, left_ms, marks, (now, _) = pipeline.execute()
    if not fields:
        return [Sentence("no lock: {key} has expired or was released; an equal job may be pushed", key=lock.key)]
    left = Sentence("for {time}", time=format_duration(left_ms / 1_000)) if left_ms > 0 else Sentence("without end")
    owner = None if b"jid" not in fields else decode_escaped(fields[b"jid"])
    begun = fields.get(b"begun")
    cancelled, expired = any(marks) and begun != b"period", begun is None and 0 < lock.expiry <= now
    if owner == lock.owner and (cancelled or expired):
        return [
            Sentence(
                "no lock: {key} holds up no push, because its job is to end: an equal job may be pushed", key=lock.key
            )
        ]
    if owner == lock.owner and WAITING_PAYLOAD.encode() in fields:
        return [
            Sentence(
                "the lock {key} {left}: while the job waits in the schedule set, equal pushes replace it or add to it",
                key=lock.key,
                left=left,
            )
        ]
    if owner == lock.owner:
        return [Sentence("the lock {key} {left}: equal jobs are dropped", key=lock.key, left=left)]
    return [Sentence("no lock: {key} now belongs to the job {owner}, {left}", key=lock.key, owner=owner, left=left)]


class LockReader(ExplainReader):
    """Tell the lock of a job, and how many jobs of a class have outlived theirs."""

    def of_class(self, worker: str) -> ShownFacts:
        series = series_name(OUTLIVED, {"worker": worker})
        count = stored_count(self.snapshot.client.hget(keys.COUNTERS, series))
        if not count:
            return ShownFacts([], {})
        text = Sentence(
            "{jobs} have waited for longer than the ttl of their deduplication locks: equal jobs were pushed meanwhile. "
            "Give Deduplicate while_waiting = True or a longer ttl, or let more processes run the class",
            jobs=format_count(count, "job"),
        )
        return ShownFacts([("locks", text)], {"locks_outlived": count})

    def resources(self, payload: Payload, identity: str) -> list[str]:
        del identity
        return describe_lock(self.snapshot.client, payload)
