"""Every Redis key we touch. Sidekiq's own names first; ours begin with ``aw:``. ``docs/reference/keys.md`` has types and TTLs."""

import time

QUEUES = "queues"
SCHEDULE = "schedule"
RETRY = "retry"
DEAD = "dead"
INTERRUPTED = "interrupted"
PROCESSES = "processes"
PAUSED = "paused"
STAT_PROCESSED = "stat:processed"
STAT_FAILED = "stat:failed"

REGISTRY = "aw:processes"
"""ZSET of the identities that may own a working list; score = last beat, seconds of Redis's clock, or below 0: seen dead then."""


STEADY_SINCE = "aw:steady_since"
"""STRING that expires when nobody has beaten for two periods: since when there was no such gap, seconds of Redis's clock."""

RETIRED = "aw:retired"
"""HASH from wire names of retired classes to how many of their jobs were dropped on this shard."""


DEAD_BUSINESS = "aw:dead:business"
"""ZSET from the SHA-1 of an entry of the dead set that is a refusal of the business to its score there (scripts/parts/trim.lua)."""

COUNTERS = "aw:counters"
"""HASH from a counter's name with its labels, as Prometheus writes them, to its value: what this shard's processes have counted."""

LIMITS = "aw:limits"
"""SET of the limits (their HASHes) that a process has evaluated on this shard."""

LIMITS_WAITING = "aw:limits:waiting"
"""SET of those that jobs wait at."""
FLAGS = "aw:flags"
"""HASH from a flag's name to what it says, as JSON: percentage, reason, until when, by whom."""

PAUSED_CLASSES = "aw:paused_classes"
"""SET of the wire names of the classes that have parked jobs."""

HELD_ALERT = "aw:held_alert"
"""STRING with a TTL: a process has just looked for how long jobs have been parked here, and the others need not."""

LIMITS_THROTTLING = "aw:limits:throttling"
"""STRING with a TTL: somebody has asked the load signals in this period."""

LOCKS = "aw:lock:"


def lock(digest: str) -> str:
    """HASH with a TTL: the lock of equal jobs; ``jid`` says whose it is."""
    return LOCKS + digest


def limit(base: str) -> str:
    """HASH, and begin of the other keys, of one concurrency limit; ``base`` is a class's wire name, or ``queue/NAME``.

    ``scripts/parts/slots.lua`` has the fields and the others: ``:running``, ``:waiting:SCOPE``, ``:turns``, ``:full``,
    ``:scopes``, ``:held``.
    """
    return f"aw:limit:{base}"


def paused_jobs(worker: str) -> str:
    """ZSET of the jobs of a paused class: a ticket, a line feed, the payload; score = since when."""
    return f"aw:paused_jobs:{worker}"


def pause_strategy(worker: str) -> str:
    """STRING with a TTL: a process that knows the class has said that its pause goes on; holds the strategy's name."""
    return f"aw:pause_strategy:{worker}"


def queue(name: str) -> str:
    """LIST of waiting jobs; producers push left, consumers take right."""
    return f"queue:{name}"


_WORKING = "aw:working:"
WORKING_LISTS = f"{_WORKING}*"
"""Pattern of all working lists."""


def working(identity: str) -> str:
    """LIST of the jobs that one process has taken and not finished."""
    return _WORKING + identity


def owner(working_list: str) -> str:
    """Return the identity whose working list this is."""
    return working_list.removeprefix(_WORKING)


_MIGRATION = "aw:migration:"  # of the form host:pid:nonce, with a pid that no process has


def migration_identity(queue_name: str) -> str:
    """Return the identity that holds a queue's jobs while they are gone through, one by one: the same for every such process."""
    return _MIGRATION + queue_name


def migrated_queue(identity: str) -> str | None:
    """Return the name of the queue whose jobs this identity holds, ``None`` for that of a process."""
    return identity.removeprefix(_MIGRATION) if identity.startswith(_MIGRATION) else None


def lease(identity: str) -> str:
    """STRING with a TTL; while it exists nobody may touch the working list of that process."""
    return f"aw:lease:{identity}"


def process(identity: str) -> str:
    """HASH of what a process has said about its runs: its ``slots``, and the digests of the suspect jobs it started."""
    return f"aw:process:{identity}"


def pushed(token: str) -> str:
    """STRING with a TTL: the slice of a bulk push that carries this token is in, and is not written again."""
    return f"aw:push:{token}"


def transferred(token: str) -> str:
    """STRING with a TTL: the job that carried this token has come over from another shard, and is not written again."""
    return f"aw:transferred:{token}"


def status(jid: str) -> str:
    """STRING with a TTL: the state of a tracked job."""
    return f"aw:status:{jid}"


METRICS_SHORT_S, METRICS_LONG_S = 8 * 3_600, 3 * 86_400
"""How long Sidekiq keeps the figures of a minute, and those of ten."""


def metrics(version: int, at: time.struct_time) -> list[tuple[str, int]]:
    """HASHes of what the classes did around a time of UTC, with their TTL, as Sidekiq 7 or 8 reads them on its Metrics page."""
    if version < 8:
        return [(f"j|{time.strftime('%Y%m%d', at)}|{at.tm_hour}:{at.tm_min}", METRICS_SHORT_S)]
    minute = f"j|{time.strftime('%y%m%d', at)}|{at.tm_hour}:{at.tm_min:02d}"
    return [(minute, METRICS_SHORT_S), (minute[:-1], METRICS_LONG_S)]


def histogram(version: int, name: str, at: time.struct_time) -> str:
    """STRING, a bit field of 26 counters: how long the runs of a class took that ended in a minute of UTC."""
    if version < 8:
        return f"{name}-{at.tm_mday:02d}-{at.tm_hour:02d}:{at.tm_min}"
    return f"h|{name}-{at.tm_mday}-{at.tm_hour}:{at.tm_min}"


def iteration(jid: str) -> str:
    """HASH of what Sidekiq keeps of a job that iterates; its field ``cancelled`` says that the job is to stop."""
    return f"it-{jid}"


def work(identity: str) -> tuple[str, str]:
    """HASHes of running jobs: Sidekiq from 6.4.2 on reads the first, Debian's 6.4.1 the second."""
    return f"{identity}:work", f"{identity}:workers"


def signals(identity: str) -> str:
    """LIST of signals that a dashboard asks a process to obey."""
    return f"{identity}-signals"
