"""Garbage for every key of the framework and of Sidekiq: values of the wrong type, and of the right type with wrong content."""

import json
from collections.abc import Callable, Iterator, Sequence

from redis import Redis

WORKERS = (
    "PlainWorker",
    "LimitedWorker",
    "DeduplicatedWorker",
    "TrackedWorker",
    "PausableWorker",
    "RateLimitedWorker",
    "BatchedWorker",
    "RowsWorker",
)
"""The classes of tests/chaos/garbage_jobs.py that are pushed."""

IDENTITY = "garbage:1:abc"
"""The identity of a process that does not exist."""

TEXTS: Sequence[bytes] = (
    b"\xff\xfe",
    b"",
    b"garbage",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'{"v":NaN,"cron":[],"class":5,"args":{},"percentage":"x","expires_at":"never"}',
    b"1e999",
    b"-1",
    b"9" * 400,
    b"null",
    b"[1,2,3]",
    b'"\\ud800"',
    b"a\nb\x00c",
    b"x" * 1_000_000,
)

# Names as docs/reference/keys.md has them, with the parts that stand for a name filled in.
STRINGS = (
    "stat:processed", "stat:failed", "aw:lease:{id}", "aw:steady_since", "aw:pause_strategy:{cls}", "aw:held_alert",
    "aw:limits:throttling", "aw:leader:{app}", "aw:result:{jid}", "aw:status:{jid}", "aw:push:{jid}", "aw:transferred:{jid}",
    "aw:order_answer:{jid}", "aw:result:{jid}:facts", "stat:processed:{date}", "stat:failed:{date}", "{cls}-1-1:1", "h|{cls}-1-1:1",
    "aw:fleet_reporter", "aw:portions_turn", "aw:deferred_release:{cls}", "aw:memory", "aw:memory_pressure",
    "aw:memory_watcher", "aw:moved:{jid}", "aw:waits:{cls}|{date}|1:1",
)  # fmt: skip
HASHES = (
    "aw:accepted_jobs", "aw:accepted_bytes",
    "aw:process:{id}", "aw:flags", "aw:lock:{digest}", "aw:levels:{queue}", "aw:limit:{cls}", "aw:limit:{cls}:scopes",
    "aw:limit:{cls}:scope_slots", "aw:portions:{cls}",
    "aw:retired", "aw:batch:{bid}", "aw:workflow:{wid}", "aw:cron:{app}", "aw:cron_orders:{app}",
    "aw:cron_entries:{app}", "aw:limiter:{limiter}", "aw:exclusive_lease:{limiter}", "aw:profile:{jid}", "aw:pause_ends",
    "aw:counters", "j|{date}|1:1", "{date}-marks", "aw:batch:{bid}:results", "it-{jid}", "{id}", "{id}:work",
    "aw:urgencies:{date}|1:1",
    "aw:packed", "aw:packed:blocks", "aw:packed:held", "aw:deferred_blocks", "aw:moves", "aw:moving_pages", "aw:moved",
    "{id}:workers", "aw:dead:business", "aw:deleted", "aw:deleted:bytes",
    "aw:breaker:{cls}", "aw:database_seconds:0", "aw:database_seconds:1", "aw:database_seconds:2",
)  # fmt: skip
SETS = ("queues", "processes", "paused", "aw:paused_classes", "aw:limits", "aw:limits:waiting",
        "aw:limits:shared", "aw:portions", "aw:limit:{cls}:full",
        "aw:batch:{bid}:failed", "aw:batch:{bid}:dead", "aw:batch:{bid}:children", "aw:breakers", "aw:aside",
        "aw:deferred_classes", "aw:moving")  # fmt: skip
ZSETS = (
    "aw:deferred_packed", "schedule", "retry", "dead", "interrupted", "aw:processes", "aw:paused_jobs:{cls}", "aw:turns:{queue}",
    "aw:limit:{cls}:running", "aw:limit:{cls}:waiting:", "aw:limit:{cls}:turns", "aw:batches", "aw:workflows", "aw:task_events",
    "aw:limiters", "aw:limiter:{limiter}:", "aw:exclusive_leases", "aw:profiles", "aw:cancelled",
    "aw:breaker:{cls}:owners", "aw:breaker:{cls}:deaths",
)  # fmt: skip
LISTS = ("{id}-signals", "aw:orders:{id}",
         "aw:working:{id}", "aw:batch_events", "aw:cron_ticks:{app}:{limiter}", "aw:result_calls:{jid}",
         "aw:workflow:{wid}:jobs:a", "queue:{queue}",
         "queue:{queue}~k", "aw:working:{id}/x", "aw:working:aw:migration:{queue}", "aw:pause_log",
         "aw:moving:{jid}:{queue}")  # fmt: skip
STREAMS = ("aw:audit",)
KINDS = {"string": STRINGS, "hash": HASHES, "set": SETS, "zset": ZSETS, "list": LISTS, "stream": STREAMS}

# Fields that the framework reads of its hashes.
FIELDS = """
v jid class since limit share known current current_until throttled_at override override_until total pending removed open
parent ttl_s created_at cancelled_at on_success definition steps name failed_steps ended_at a:state a:jobs a:dead rule taken
waited refused resized token holder page at duration_s bytes error ex c rt cancelled aw_done aw_total info concurrency busy
beat rss rtt_us next starts slots capsule:x expires_at until wait cause reason probe opened_at cautious r:1 f:1
actor action what end_of count
""".split()  # noqa: SIM905 - a list would have a line for each


def write(client: Redis, kind: str, key: str, texts: Sequence[bytes], fields: Sequence[str]) -> None:
    """Write a key of a type with these texts as its content."""
    pipe = client.pipeline(transaction=False)
    if kind == "string":
        pipe.set(key, texts[0])
    elif kind == "hash":
        # All fields with a megabyte each would be a flood, which is another test.
        shown = fields if len(texts[0]) < 1_000 else fields[:1]
        pipe.hset(key, mapping={text: text for text in texts} | dict.fromkeys(shown, texts[0]))
    elif kind == "set":
        pipe.sadd(key, *texts)
    elif kind == "zset":
        pipe.zadd(key, {text: number for number, text in enumerate(texts)})
    elif kind == "stream":
        pipe.xadd(key, {text: text for text in texts} | dict.fromkeys(fields, texts[0][:1_000]))
    else:
        pipe.rpush(key, *texts)
    pipe.execute()


def garbage(names: Callable[[str], str]) -> Iterator[tuple[str, Callable[[Redis], None]]]:
    """Yield the rounds: a name, and a function that writes the garbage of the round into all keys at once."""
    everything = [(kind, names(key)) for kind, keys in KINDS.items() for key in keys]

    def wrong_type(client: Redis) -> None:
        for kind, key in everything:
            client.delete(key)
            write(client, "list" if kind != "list" else "hash", key, TEXTS[:3], ())

    yield "wrong type", wrong_type
    for text in TEXTS:

        def one(client: Redis, text: bytes = text) -> None:
            for kind, key in everything:
                if client.type(key).decode() not in (kind, "none"):
                    client.delete(key)
                write(client, kind, key, (text,), FIELDS)

        yield json.dumps(text[:20].decode(errors="backslashreplace")), one
