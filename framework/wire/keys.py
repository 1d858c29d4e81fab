"""Name every Redis key: Sidekiq's keys, then this framework's, which begin with ``aw:``.

``docs/reference/keys.md`` has types and TTLs.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

QUEUES = "queues"
SCHEDULE = "schedule"
RETRY = "retry"
DEAD = "dead"
INTERRUPTED = "interrupted"
PROCESSES = "processes"
PAUSED = "paused"
STAT_PROCESSED = "stat:processed"
STAT_FAILED = "stat:failed"

PAUSE_LOG = "aw:pause_log"
"""LIST of the last pauses by operators and of their ends, as JSON, the last one first."""

PAUSE_ENDS = "aw:pause_ends"
"""HASH from a paused queue whose pause ends by itself to its end, in seconds of Redis's clock."""

REGISTRY = "aw:processes"
"""ZSET of the identities that may own a working list; score: last heartbeat in seconds of Redis's clock; negative if dead."""


STEADY_SINCE = "aw:steady_since"
"""STRING that expires after two periods without any heartbeat: the start of the gapless time, in seconds of Redis's clock."""

RETIRED = "aw:retired"
"""HASH from wire names of retired classes to the number of their jobs dropped on this shard."""


DEAD_BUSINESS = "aw:dead:business"
"""ZSET from the SHA-1 of a dead set entry of a BusinessError to its score there (scripts/parts/trim.lua)."""

DELETED = "aw:deleted"
"""ZSET of the jobs that operators deleted from a set in the last 24 hours: the set, the score there, and the payload behind a line
break; score: when (``admin/deleted_jobs.py``). The STRING ``:bytes`` counts their bytes."""

AUDIT = "aw:audit"
"""STREAM of the actions of operators on this shard, and of their ends (``admin/audit.py``)."""

COUNTERS = "aw:counters"
"""HASH from a counter's name and labels in Prometheus's notation to the sum of this shard's processes."""

TASK_EVENTS = "aw:task_events"
"""ZSET of the changes of events that wait for the database of tasks, as JSON; score: when they were seen (room ``tasks``)."""

ACCEPTED_JOBS, ACCEPTED_BYTES = "aw:accepted_jobs", "aw:accepted_bytes"
"""HASH each: class -> its jobs that were accepted and have not ended, and their bytes; only of classes with a limit of them."""

MEMORY = "aw:memory"
"""STRING: what fills the memory of the shard, and the classes whose pushes are held back, as JSON."""

# Classes whose deferred jobs come back when their flag lets jobs run.
DEFERRED_CLASSES = "aw:deferred_classes"
MEMORY_WATCHER = "aw:memory_watcher"
# Whether the memory is near its end, or short; the lists of jobs that are set aside meanwhile.
MEMORY_PRESSURE, ASIDE = "aw:memory_pressure", "aw:aside"
"""STRING: the process that measures the memory of the shard."""

LIMITS = "aw:limits"
"""SET of the limits that a process has evaluated on this shard, by the keys of their HASHes."""

LIMITS_WAITING = "aw:limits:waiting"
"""SET of the limits with waiting jobs."""

FLAGS = "aw:flags"
"""HASH from a flag's name to its value as JSON: percentage, reason, end, operator."""

PAUSED_CLASSES = "aw:paused_classes"
"""SET of the wire names of the classes with held jobs."""

HELD_ALERT = "aw:held_alert"
"""STRING with a TTL: a process has just checked the age of held jobs on this shard, so that the others need not."""

LIMITS_SHARED = "aw:limits:shared"
"""SET of the limits that hold on all shards together, by the keys of their HASHes."""

PORTIONS = "aw:portions"
"""SET on the shard with the role ``meta`` of the limits that are divided between the shards, by their names."""

PORTIONS_TURN = "aw:portions_turn"
"""STRING with a TTL: the process that keeps the portions of this shard."""


def portions(base: str) -> str:
    """HASH on the shard with the role ``meta``: the portions of one limit (room ``concurrency``, ``scripts/divide.lua``)."""
    return f"aw:portions:{base}"


LIMITS_THROTTLING = "aw:limits:throttling"
"""STRING with a TTL: a process has read the load signals in this period."""


def database_seconds(number: int) -> str:
    """HASH with a TTL: the seconds of SQL in one minute by ``DATABASE|CLASS``; ``number`` is that of the minute modulo 3."""
    return f"aw:database_seconds:{number}"


CANCELLED = "aw:cancelled"
"""ZSET of the ids of cancelled jobs that have not ended; score: when they were cancelled, in seconds of Redis's clock."""

CANCELLED_TTL_S = 30 * 86_400
"""How long a cancellation is kept, in case the job is found nowhere: as long as Sidekiq keeps its own."""

LOCKS = "aw:lock:"


def lock(digest: str) -> str:
    """HASH with a TTL: the lock of equal jobs; field ``jid`` names the owner."""
    return LOCKS + digest


def deferred_release(worker: str) -> str:
    """The process that brings back the deferred jobs of a class."""
    return f"aw:deferred_release:{worker}"


def limit(base: str) -> str:
    """HASH, and prefix of the other keys, of one concurrency limit; ``base`` is a wire name, or ``queue/NAME``.

    ``scripts/parts/slots.lua`` has the fields and the other keys: ``:running``, ``:waiting:SCOPE``, ``:turns``, ``:full``,
    ``:scopes``, ``:scope_slots``.
    """
    return f"aw:limit:{base}"


PROFILES = "aw:profiles"
"""ZSET of the ids of the jobs whose profiles are kept; score: when each was written, in seconds of Redis's clock."""


def profile(jid: str) -> str:
    """HASH with a TTL: the profile of the last run of a job, a page in gzip (``set(profile=True)``)."""
    return f"aw:profile:{jid}"


def paused_jobs(worker: str) -> str:
    """ZSET of the jobs of a paused class: a ticket, a line feed, the payload; score: start of the hold."""
    return f"aw:paused_jobs:{worker}"


def pause_strategy(worker: str) -> str:
    """STRING with a TTL: the strategy's name, written by a process that knows the class while the pause goes on."""
    return f"aw:pause_strategy:{worker}"


def queue(name: str) -> str:
    """LIST of waiting jobs; producers push left, consumers pop right."""
    return f"queue:{name}"


PACKED = "aw:packed"
"""HASH from a queue with blocks (``wire/blocks.py``) to the number of the jobs in them."""

PACKED_BLOCKS = "aw:packed:blocks"
"""HASH from a queue with blocks to their number."""


PACKED_HELD = "aw:packed:held"
"""HASH from the key of a set of held jobs with blocks to the number of its jobs beyond its members."""


DEFERRED_PACKED = "aw:deferred_packed"
"""ZSET of the names of blocks of deferred jobs (``fetch/deferred_blocks.py``); score: when the first job is due."""

DEFERRED_BLOCKS = "aw:deferred_blocks"
"""HASH from the id of a block of deferred jobs to its bytes."""


def turns(queue: str) -> str:
    """ZSET of the keys of a queue's sub-queues with jobs; the score is the number of the turn."""
    return f"aw:turns:{queue}"


def levels(queue: str) -> str:
    """HASH of a queue while the levels of its jobs differ: ``next`` and ``starts`` (``parts/turns.lua``)."""
    return f"aw:levels:{queue}"


_WORKING = "aw:working:"
WORKING_LISTS = f"{_WORKING}*"
"""Pattern of all working lists."""


def working(owner: str) -> str:
    """LIST of the jobs that one process, or one of its further capsules, has fetched and not finished."""
    return _WORKING + owner


def owner(working_list: str) -> str:
    """Return the owner of a working list: the identity of a process, or ``IDENTITY/NAME`` of a further capsule."""
    return working_list.removeprefix(_WORKING)


# Has the form host:pid:nonce of an identity, with a pid that no process has.
_MIGRATION = "aw:migration:"


def migration_identity(queue_name: str) -> str:
    """Return the identity that holds a queue's jobs during a migration. It is the same for every migrating process."""
    return _MIGRATION + queue_name


def migrated_queue(identity: str) -> str | None:
    """Return the name of the queue whose jobs this identity holds, or ``None`` for a process's identity."""
    return identity.removeprefix(_MIGRATION) if identity.startswith(_MIGRATION) else None


def lease(owner: str) -> str:
    """STRING with a TTL: the lease of a process. While it exists no other process may change its working lists."""
    return f"aw:lease:{split_owner(owner)[0]}"


def process(owner: str) -> str:
    """HASH of a process's runs: its ``slots``, those of its further capsules, and the digests of the suspects that it started."""
    return f"aw:process:{split_owner(owner)[0]}"


def pushed(token: str) -> str:
    """STRING with a TTL: the token of a written chunk of a bulk push, which is not written again."""
    return f"aw:push:{token}"


def transferred(token: str) -> str:
    """STRING with a TTL: the token of a job received from another shard, which is not written again."""
    return f"aw:transferred:{token}"


def status(jid: str) -> str:
    """STRING with a TTL: the state of a tracked job."""
    return f"aw:status:{jid}"


def result(jid: str) -> str:
    """STRING with a TTL: how a job ended whose caller waits, with its result (``wire/answers.py``)."""
    return f"aw:result:{jid}"


METRICS_SHORT_S, METRICS_LONG_S = 8 * 3_600, 3 * 86_400
"""How long Sidekiq keeps the metrics of one minute and of ten minutes."""


def metrics(version: int, at: time.struct_time) -> list[tuple[str, int]]:
    """HASHes of class metrics around a UTC time, with their TTLs, as Sidekiq 7 or 8 reads them on its Metrics page."""
    if version < 8:
        return [(f"j|{time.strftime('%Y%m%d', at)}|{at.tm_hour}:{at.tm_min}", METRICS_SHORT_S)]
    minute = f"j|{time.strftime('%y%m%d', at)}|{at.tm_hour}:{at.tm_min:02d}"
    return [(minute, METRICS_SHORT_S), (minute[:-1], METRICS_LONG_S)]


def urgencies(at: time.struct_time) -> list[tuple[str, int]]:
    """HASHes of the runs by urgency around a UTC time, of the minute and of ten minutes, with their TTLs: as long as ``metrics``."""
    minute = f"aw:urgencies:{time.strftime('%y%m%d', at)}|{at.tm_hour}:{at.tm_min:02d}"
    return [(minute, METRICS_SHORT_S), (minute[:-1], METRICS_LONG_S)]


def class_waits(name: str, at: time.struct_time) -> str:
    """BITFIELD of the runs of one class in ten minutes by how long their jobs waited (``wire/urgency_counts.py``).

    It lives as long as the histogram of a minute.
    """
    return f"aw:waits:{name}|{time.strftime('%y%m%d', at)}|{at.tm_hour}:{at.tm_min // 10}"


def histogram(version: int, name: str, at: time.struct_time) -> str:
    """STRING, a bit field of 26 counters: the durations of a class's runs that ended in one UTC minute."""
    if version < 8:
        return f"{name}-{at.tm_mday:02d}-{at.tm_hour:02d}:{at.tm_min}"
    return f"h|{name}-{at.tm_mday}-{at.tm_hour}:{at.tm_min}"


def iteration(jid: str) -> str:
    """HASH of Sidekiq's state of an iterating job (``wire/iteration_state.py``); its field ``cancelled`` asks the job to stop."""
    return f"it-{jid}"


ITERATION_TTL_S = 30 * 86_400
"""How long Sidekiq keeps the state of an iterating job after its last write."""


def work(identity: str) -> tuple[str, str]:
    """HASHes of running jobs: Sidekiq from 6.4.2 reads the first, Debian's 6.4.1 the second."""
    return f"{identity}:work", f"{identity}:workers"


def signals(identity: str) -> str:
    """LIST of signals that a dashboard sends to a process."""
    return f"{identity}-signals"


def orders(identity: str) -> str:
    """LIST with a TTL of operators' orders to a process about its running jobs (``wire/orders.py``)."""
    return f"aw:orders:{identity}"


def order_answer(token: str) -> str:
    """STRING with a TTL: the answer of a process to one order."""
    return f"aw:order_answer:{token}"


def capsule_field(capsule: str) -> str:
    """Return the field of the HASH ``process`` that has the slots of a further capsule."""
    return f"capsule:{capsule}"


# Decision 20: each capsule has a working list, because the reaper judges jobs by their places in it. All share one lease.
def capsule_owner(identity: str, capsule: str) -> str:
    """Return the owner of the working list of a capsule; the first capsule, whose name is empty here, has the process's own."""
    return f"{identity}/{capsule}" if capsule else identity


def split_owner(owner: str) -> tuple[str, str]:
    """Return the identity of the process that an owner belongs to, and the name of its capsule, empty for the first."""
    # The host name cannot contain a slash.
    identity, _, capsule = owner.partition("/")
    return identity, capsule


def capsules_of(fields: Iterable[bytes]) -> list[str]:
    """Return the names of the further capsules in the fields of the HASH ``process``."""
    prefix = capsule_field("").encode()
    return sorted(name.removeprefix(prefix).decode(errors="replace") for name in fields if name.startswith(prefix))


_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SetLimits:
    """The limits of one set. The defaults are Sidekiq's for the dead set: it keeps at most 9,999 jobs for ``max_jobs`` 10,000."""

    max_jobs: int = 10_000
    max_age_s: float = 180 * _DAY_S
    max_business_jobs: int = 1_000
    """How many of these jobs may have ended by a ``BusinessError``."""

    @property
    def arguments(self) -> tuple[int, float]:
        """The script arguments of parts/trim.lua: most jobs, and their age in seconds."""
        return self.max_jobs, self.max_age_s


INTERRUPTED_SET_LIMITS = SetLimits(max_age_s=90 * _DAY_S)
"""GitLab's limits of the interrupted set."""
