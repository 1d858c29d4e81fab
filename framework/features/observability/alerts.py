"""List the alerts: names, severities and meanings.

``monitoring write`` makes a Prometheus rule of each, and ``diagnose --alert NAME`` finds the cause of one that fires. This file
imports nothing heavy.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["page", "ticket"]
"""``page``: jobs wait or fail now, an operator is called. ``ticket``: an operator looks at it on the next working day."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of the written rules."""

    name: str
    """The name of the rule in Prometheus, and of ``diagnose --alert``."""
    severity: Severity
    """Its highest severity: slow burn rates of a service level are tickets."""
    meaning: str
    """What is wrong, in one sentence."""


ALERTS: tuple[Alert, ...] = (
    # Service levels, per urgency.
    Alert("ExecutionApdexBurn", "page", "Successful runs take longer than the execution target of their urgency."),
    Alert("ExecutionErrorBurn", "page", "Runs fail more often than the error budget allows."),
    Alert("QueueingApdexBurn", "page", "Jobs wait longer in their queues than the queueing target of their urgency."),
    # Progress.
    Alert("NoProgress", "page", "Jobs wait on a shard, and none of its processes has ended a job."),
    Alert("QueueNotProcessed", "page", "Jobs wait in a queue, and no run of a job of this queue starts."),
    Alert("QueuePausedTooLong", "ticket", "A queue is paused for long, and jobs wait in it."),
    Alert("ClassNotDequeued", "ticket", "Jobs of a class are enqueued, and no run of the class starts."),
    Alert("OldestJobTooOld", "page", "The oldest job of a queue waits longer than three times the target."),
    Alert("OldestHeldTooOld", "ticket", "A job is held by a limit or a pause for too long."),
    Alert("HeldJobsGrowing", "ticket", "More jobs are held than the threshold allows, and their number grows."),
    Alert("LeakedSlots", "ticket", "Slots of a limit belong to processes that are gone, and jobs wait for them."),
    Alert("OrphanLocks", "ticket", "Pushes of a class are dropped as duplicates of a job that does not run."),
    Alert(
        "JobsSkippedTooLong", "ticket", "A flag or a health check has deferred or dropped jobs of a class for hours."
    ),
    Alert("SlotsSaturated", "ticket", "Almost all slots of a shard are busy."),
    # Failed jobs.
    Alert("DeadSetGrowing", "ticket", "The dead set of a shard grows."),
    Alert("JobsQuarantined", "ticket", "Jobs that killed their processes, or are malformed, were set aside."),
    Alert("RecoveredSpike", "ticket", "Many jobs of killed processes are recovered."),
    Alert("UnknownClass", "ticket", "Jobs wait for a process that has their class: a bad deploy."),
    # Time.
    Alert("SchedulerStalled", "page", "Due jobs are not moved to their queues."),
    Alert("CronMissed", "ticket", "Ticks of a cron schedule were missed."),
    Alert("ClockSkew", "ticket", "The clock of a host and that of Redis differ."),
    # Processes.
    Alert("ProcessesFlapping", "ticket", "Processes start again and again."),
    Alert("HeartbeatLate", "ticket", "The heartbeat of a process is late: it may lose its lease."),
    Alert("MemoryLimitExceeded", "ticket", "Processes exceed their memory limit and are replaced."),
    Alert("ForcedShutdowns", "ticket", "Processes end before their jobs do, so jobs run twice."),
    # Redis.
    Alert("ShardAway", "page", "A shard does not answer."),
    Alert(
        "RedisMemoryHigh", "ticket", "Redis uses more of its memory limit than the threshold, or fills it within hours."
    ),
    Alert("RedisMemoryFull", "page", "Redis has almost no memory left; it will refuse pushes."),
    Alert("UnsafeRedisConfig", "ticket", "Redis may evict jobs, or loses them when it restarts."),
    Alert("RedisEvictsKeys", "page", "Redis evicts keys: jobs are lost."),
    Alert("DataLossSuspected", "page", "Redis has lost data: it was flushed, or came back with older data."),
    Alert("CertificateExpiry", "ticket", "The certificate of a Redis ends soon: then no process can connect."),
    Alert("PushesKept", "ticket", "Pushes wait in a folder of a host, because Redis has not taken them."),
    # The monitoring itself.
    Alert("FleetMetricsMissing", "page", "Nothing reports the figures of the fleet, so no other alert can fire."),
)
"""In the order of the documentation."""

ALERT_NAMES: tuple[str, ...] = tuple(alert.name for alert in ALERTS)
"""The values of ``diagnose --alert``."""


def runbook(name: str) -> str:
    """Return the command that finds the cause of an alert."""
    return f"application-worker diagnose --alert {name}"
