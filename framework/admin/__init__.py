"""Look at the jobs, queues and processes of the shards, and act on them: the data API, Sidekiq's ``sidekiq/api``.

    from framework import admin

    admin.stats().enqueued
    admin.Queue("mailers").pause()

Nothing needs the application's code. The first call of a process reads the configuration and connects, as the first push does.
Every call covers all shards; ``shard="main"`` names one. A shard that does not answer does not stop a call: its error is in
``unanswered`` of the result, and a loop over jobs raises it after the last job. ``ShardUnavailableError`` is raised when no
shard answers. Inside of ``with admin.read_only()`` every action is refused.

Functions and methods that wait for Redis have asynchronous twins, whose names begin with ``a``: ``await admin.astats()``,
``await job.aretry()``, ``async for job in admin.dead()``. They work in a thread.

Each name is loaded at its first use. The other modules of this folder are functions of a shard's client, in bounded steps.
"""

from typing import TYPE_CHECKING, Any

from framework.lazy_names import load_name, public_names

if TYPE_CHECKING:
    from framework.admin.access import Answers, Listing, read_only
    from framework.admin.audit import AuditRecord, aaudit_log, acting_as, audit_log
    from framework.admin.cancel import CancelResult, acancel_jobs, cancel_jobs
    from framework.admin.deleted_jobs import DeletedJob, DeletedJobs, deleted
    from framework.admin.errors_by_class import ErrorGroups, aerror_groups, error_groups
    from framework.admin.groups import JobGroup, JobGroups, atop, top
    from framework.admin.health_of_shards import ShardHealth, ashard_health, shard_health
    from framework.admin.held_set import DropResult, HeldPlace, HeldRecord, HeldSet, MatchingHeldJobs, held
    from framework.admin.job_queue import Queue, QueuedJob, aqueues, queues
    from framework.admin.job_record import JobCriteria, JobRecord
    from framework.admin.job_set import (
        BulkResult,
        JobEntry,
        JobSet,
        MatchingJobs,
        dead,
        interrupted,
        retries,
        scheduled,
    )
    from framework.admin.loaded_classes import WorkerClass, worker_class, worker_classes
    from framework.admin.process_list import Processes, RunningJob, WorkerProcess, aprocesses, awork, processes, work
    from framework.admin.rates import QueueRates, RateWindow, ShardCounts, ShardRates, aread_counts, read_counts
    from framework.admin.running_jobs import JobStack, Stacks, StoppedJob, astacks, astop_job, stacks, stop_job
    from framework.admin.statistics import (
        RunHistory,
        ShardStats,
        Stats,
        ahistory,
        aserver_times,
        astats,
        history,
        server_times,
        stats,
    )
    from framework.admin.whole_job import WholeJob, ajob_story, job_story
    from framework.features.batches.admin import BatchSet, batches
    from framework.features.concurrency.admin import LimitWithHolders, alimit_holders, alimits, limit_holders, limits
    from framework.features.cron.admin import (
        ScheduledEntry,
        aadd_cron_entry,
        acron_entries,
        add_cron_entry,
        aremove_cron_entry,
        cron_entries,
        remove_cron_entry,
    )
    from framework.features.deduplication.admin import alocks, locks
    from framework.features.fairness.admin import aset_priority, set_priority
    from framework.features.flags.admin import aflags, flags
    from framework.features.history.admin import DeployMark, RunSeries, adeploys, arun_series, deploys, run_series
    from framework.features.iteration.admin import (
        JobIteration,
        aiteration,
        areset_iteration,
        iteration,
        reset_iteration,
    )
    from framework.features.limiters.admin import LimiterState, alimiters, limiters
    from framework.features.pause.admin import apaused, paused
    from framework.features.profiling.admin import JobProfile, aprofile, aprofiles, profile, profiles
    from framework.features.workflows.admin import WorkflowSet, workflows

__all__ = [
    "Answers",
    "AuditRecord",
    "BatchSet",
    "BulkResult",
    "CancelResult",
    "DeletedJob",
    "DeletedJobs",
    "DeployMark",
    "DropResult",
    "ErrorGroups",
    "HeldPlace",
    "HeldRecord",
    "HeldSet",
    "JobCriteria",
    "JobEntry",
    "JobGroup",
    "JobGroups",
    "JobIteration",
    "JobProfile",
    "JobRecord",
    "JobSet",
    "JobStack",
    "LimitWithHolders",
    "LimiterState",
    "Listing",
    "MatchingHeldJobs",
    "MatchingJobs",
    "Processes",
    "Queue",
    "QueueRates",
    "QueuedJob",
    "RateWindow",
    "RunHistory",
    "RunSeries",
    "RunningJob",
    "ScheduledEntry",
    "ShardCounts",
    "ShardHealth",
    "ShardRates",
    "ShardStats",
    "Stacks",
    "Stats",
    "StoppedJob",
    "WholeJob",
    "WorkerClass",
    "WorkerProcess",
    "WorkflowSet",
    "aadd_cron_entry",
    "aaudit_log",
    "acancel_jobs",
    "acron_entries",
    "acting_as",
    "add_cron_entry",
    "adeploys",
    "aerror_groups",
    "aflags",
    "ahistory",
    "aiteration",
    "ajob_story",
    "alimit_holders",
    "alimiters",
    "alimits",
    "alocks",
    "apaused",
    "aprocesses",
    "aprofile",
    "aprofiles",
    "aqueues",
    "aread_counts",
    "aremove_cron_entry",
    "areset_iteration",
    "arun_series",
    "aserver_times",
    "aset_priority",
    "ashard_health",
    "astacks",
    "astats",
    "astop_job",
    "atop",
    "audit_log",
    "awork",
    "batches",
    "cancel_jobs",
    "cron_entries",
    "dead",
    "deleted",
    "deploys",
    "error_groups",
    "flags",
    "held",
    "history",
    "interrupted",
    "iteration",
    "job_story",
    "limit_holders",
    "limiters",
    "limits",
    "locks",
    "paused",
    "processes",
    "profile",
    "profiles",
    "queues",
    "read_counts",
    "read_only",
    "remove_cron_entry",
    "reset_iteration",
    "retries",
    "run_series",
    "scheduled",
    "server_times",
    "set_priority",
    "shard_health",
    "stacks",
    "stats",
    "stop_job",
    "top",
    "work",
    "worker_class",
    "worker_classes",
    "workflows",
]

# No module of this folder has the name of one of these: it would hide the name once it is imported.
_MODULES = {
    "ErrorGroups": "errors_by_class",
    "aerror_groups": "errors_by_class",
    "error_groups": "errors_by_class",
    "DeletedJob": "deleted_jobs",
    "DeletedJobs": "deleted_jobs",
    "deleted": "deleted_jobs",
    "WholeJob": "whole_job",
    "ajob_story": "whole_job",
    "job_story": "whole_job",
    "QueueRates": "rates",
    "RateWindow": "rates",
    "ShardRates": "rates",
    "ShardCounts": "rates",
    "aread_counts": "rates",
    "read_counts": "rates",
    "ShardHealth": "health_of_shards",
    "ashard_health": "health_of_shards",
    "shard_health": "health_of_shards",
    "WorkerClass": "loaded_classes",
    "worker_class": "loaded_classes",
    "worker_classes": "loaded_classes",
    "LimitWithHolders": "features.concurrency.admin",
    "alimit_holders": "features.concurrency.admin",
    "limit_holders": "features.concurrency.admin",
    "DeployMark": "features.history.admin",
    "RunSeries": "features.history.admin",
    "adeploys": "features.history.admin",
    "arun_series": "features.history.admin",
    "deploys": "features.history.admin",
    "run_series": "features.history.admin",
    "Answers": "access",
    "AuditRecord": "audit",
    "BatchSet": "features.batches.admin",
    "BulkResult": "job_set",
    "CancelResult": "cancel",
    "DropResult": "held_set",
    "HeldPlace": "held_set",
    "HeldRecord": "held_set",
    "HeldSet": "held_set",
    "JobCriteria": "job_record",
    "JobEntry": "job_set",
    "JobGroup": "groups",
    "JobGroups": "groups",
    "JobIteration": "features.iteration.admin",
    "JobProfile": "features.profiling.admin",
    "JobRecord": "job_record",
    "JobSet": "job_set",
    "JobStack": "running_jobs",
    "LimiterState": "features.limiters.admin",
    "Listing": "access",
    "MatchingHeldJobs": "held_set",
    "MatchingJobs": "job_set",
    "Processes": "process_list",
    "Queue": "job_queue",
    "QueuedJob": "job_queue",
    "RunHistory": "statistics",
    "RunningJob": "process_list",
    "ScheduledEntry": "features.cron.admin",
    "ShardStats": "statistics",
    "Stacks": "running_jobs",
    "Stats": "statistics",
    "StoppedJob": "running_jobs",
    "WorkerProcess": "process_list",
    "WorkflowSet": "features.workflows.admin",
    "aadd_cron_entry": "features.cron.admin",
    "aaudit_log": "audit",
    "acancel_jobs": "cancel",
    "acron_entries": "features.cron.admin",
    "acting_as": "audit",
    "add_cron_entry": "features.cron.admin",
    "aflags": "features.flags.admin",
    "ahistory": "statistics",
    "aiteration": "features.iteration.admin",
    "alimiters": "features.limiters.admin",
    "alimits": "features.concurrency.admin",
    "alocks": "features.deduplication.admin",
    "apaused": "features.pause.admin",
    "aprocesses": "process_list",
    "aprofile": "features.profiling.admin",
    "aprofiles": "features.profiling.admin",
    "aqueues": "job_queue",
    "aremove_cron_entry": "features.cron.admin",
    "areset_iteration": "features.iteration.admin",
    "aserver_times": "statistics",
    "aset_priority": "features.fairness.admin",
    "astacks": "running_jobs",
    "astats": "statistics",
    "astop_job": "running_jobs",
    "atop": "groups",
    "audit_log": "audit",
    "awork": "process_list",
    "batches": "features.batches.admin",
    "cancel_jobs": "cancel",
    "cron_entries": "features.cron.admin",
    "dead": "job_set",
    "flags": "features.flags.admin",
    "held": "held_set",
    "history": "statistics",
    "interrupted": "job_set",
    "iteration": "features.iteration.admin",
    "limiters": "features.limiters.admin",
    "limits": "features.concurrency.admin",
    "locks": "features.deduplication.admin",
    "paused": "features.pause.admin",
    "processes": "process_list",
    "profile": "features.profiling.admin",
    "profiles": "features.profiling.admin",
    "queues": "job_queue",
    "read_only": "access",
    "remove_cron_entry": "features.cron.admin",
    "reset_iteration": "features.iteration.admin",
    "retries": "job_set",
    "scheduled": "job_set",
    "server_times": "statistics",
    "set_priority": "features.fairness.admin",
    "stacks": "running_jobs",
    "stats": "statistics",
    "stop_job": "running_jobs",
    "top": "groups",
    "work": "process_list",
    "workflows": "features.workflows.admin",
}
"""Module of each public name, in this folder or in a feature. Type checkers read it from the imports above."""


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name, "")
    return load_name(globals(), name, f"framework.{module}" if "." in module else f"{__name__}.{module}")


def __dir__() -> list[str]:
    return public_names(globals())
