"""``application-worker``: every command of the framework under one name; and ``jobs``, the commands about jobs."""

from collections.abc import Mapping, Sequence
from itertools import chain

import click

from framework.feature import Late, LateCommand, features
from framework.terminal.groups import LateGroup, SectionedGroup
from framework.version import VERSION

_COMMANDS = (
    LateCommand("worker", "Run one worker process until TERM or INT.", Late("framework.cli.worker:worker")),
    LateCommand("cluster", "Run a supervisor and its worker processes.", Late("framework.cli.cluster:cluster")),
    LateCommand(
        "generate-queues",
        "Write the generated files: all workers, and their queues.",
        Late("framework.devtools.commands.generate_queues:generate_queues"),
    ),
    LateCommand(
        "route",
        "Show queue, shard and rule of workers, and check the rules.",
        Late("framework.devtools.commands.route:route"),
    ),
    LateCommand(
        "attributes",
        "List what a worker class may declare, or explain attributes.",
        Late("framework.devtools.commands.attributes:attributes"),
    ),
    LateCommand(
        "lint-workers",
        "Find faults in the source of workers, without importing it.",
        Late("framework.devtools.commands.lint_workers:lint_workers"),
    ),
    LateCommand(
        "check-compat",
        "Check whether a deploy would break jobs of the last release.",
        Late("framework.devtools.commands.check_compat:check_compat"),
    ),
    LateCommand("retired", "Count the jobs that are left of retired classes.", Late("framework.cli.retired:retired")),
    LateCommand(
        "migrate-jobs",
        "Move waiting jobs to other queues of their shard.",
        Late("framework.cli.migrate_jobs:migrate_jobs"),
    ),
    LateCommand("jobs", "Show jobs that do not run, explain why, and release them.", Late("framework.cli.main:jobs")),
    LateCommand("top", "Show queues, processes and jobs, live, in a terminal.", Late("framework.cli.top.command:top")),
    LateCommand("dashboard", "Serve the pages about all jobs to a browser.", Late("framework.cli.dashboard:dashboard")),
    LateCommand(
        "diagnose",
        "Find out why jobs wait, fail or do not come.",
        Late("framework.cli.diagnose:diagnose_"),
    ),
    LateCommand("audit", "Show the actions of operators.", Late("framework.cli.audit:audit")),
    LateCommand("store", "Start, stop or show the development stores.", Late("framework.cli.store:store")),
    LateCommand("app", "Run a command of the application's own features.", Late("framework.cli.app:app")),
    LateCommand("acl", "Print the least Redis rights of a role.", Late("framework.cli.store:acl")),
)

main = LateGroup(
    "application-worker",
    chain(_COMMANDS, *(one.commands for one in features())),
    "Run worker processes and manage their jobs.",
)
click.version_option(VERSION, prog_name="application-worker")(main)


_JOB_COMMANDS = (
    LateCommand(
        "enqueue",
        "Push one job of CLASS with the arguments JSON_ARGS, a JSON array, and print its id.",
        Late("framework.cli.jobs_actions:enqueue"),
    ),
    LateCommand("stats", "Show the counters and sizes of each shard.", Late("framework.cli.jobs_stats:stats")),
    LateCommand(
        "queues",
        "Show every queue, or each QUEUE: its jobs, its latency, its pause, its processes.",
        Late("framework.cli.jobs_queues:queues"),
    ),
    LateCommand(
        "pause-queue",
        "Let no process fetch jobs from QUEUE; they wait there, and pushes go on.",
        Late("framework.cli.jobs_queues:pause_queue_"),
    ),
    LateCommand("unpause-queue", "End the pause of QUEUE.", Late("framework.cli.jobs_queues:unpause_queue_")),
    LateCommand(
        "clear",
        "Drop the jobs that are in QUEUE now, or those that options select, without running them.",
        Late("framework.cli.jobs_queues:clear"),
    ),
    LateCommand(
        "processes",
        "Show the running processes of this framework and of Sidekiq, or their running jobs.",
        Late("framework.cli.jobs_processes:processes"),
    ),
    LateCommand(
        "quiet",
        "Ask each PROCESS to fetch no more jobs; running jobs go on.",
        Late("framework.cli.jobs_processes:quiet"),
    ),
    LateCommand(
        "stop",
        "Ask each PROCESS to stop, and push its jobs back after its timeout; or stop the running job JID.",
        Late("framework.cli.jobs_processes:stop"),
    ),
    LateCommand(
        "stack",
        "Show the stacks of the running jobs of a PROCESS, or of the running job JID.",
        Late("framework.cli.jobs_stacks:stack"),
    ),
    LateCommand(
        "dump", "Ask each PROCESS to log the stacks of its threads.", Late("framework.cli.jobs_processes:dump")
    ),
    LateCommand(
        "ping",
        "Say whether processes are running, by their heartbeats: all, or each PROCESS.",
        Late("framework.cli.jobs_processes:ping"),
    ),
    LateCommand(
        "list",
        "List the jobs of PLACE: queue:NAME, scheduled, retry, dead, interrupted or held.",
        Late("framework.cli.jobs_list:list_jobs"),
    ),
    LateCommand(
        "top",
        "Count the jobs of PLACE by class, queue, error, tag or a field of their context.",
        Late("framework.cli.jobs_top:top"),
    ),
    LateCommand(
        "show",
        "Show the job JID: its place, class, arguments, error with backtrace, and every other field.",
        Late("framework.cli.jobs_list:show"),
    ),
    LateCommand(
        "story",
        "Show what became of the job ID, or of all jobs with the correlation id ID.",
        Late("framework.cli.story.command:story"),
    ),
    LateCommand(
        "retry", "Retry dead or failed jobs: move them to their queues now.", Late("framework.cli.jobs_actions:retry")
    ),
    LateCommand("kill", "Kill jobs that wait: move them to the dead set.", Late("framework.cli.jobs_actions:kill")),
    LateCommand("delete", "Delete jobs of a set: they never run.", Late("framework.cli.jobs_actions:delete")),
    LateCommand(
        "undo",
        "List the jobs that were deleted from sets in the last 24 hours; with --yes bring them back.",
        Late("framework.cli.jobs_undo:undo"),
    ),
    LateCommand(
        "requeue", "Move interrupted jobs to their queues for one more run.", Late("framework.cli.jobs_actions:requeue")
    ),
    LateCommand(
        "cancel",
        "Cancel jobs, wherever they are: end those that wait, and ask running ones to end.",
        Late("framework.cli.jobs_actions:cancel"),
    ),
    LateCommand(
        "explain",
        "Explain why the job JID does not run, or why the class WORKER makes no progress.",
        Late("framework.cli.jobs_explain:explain"),
    ),
    LateCommand(
        "held",
        "Show and drop the jobs that a limit or a pause holds outside of their queues.",
        Late("framework.cli.jobs_queues:held"),
    ),
)


class JobsGroup(SectionedGroup):
    """The commands by what an operator wants to do, also those of features."""

    sections: Mapping[str, Sequence[str]] = {
        "Why does nothing happen": ("explain", "show", "story", "workflow", "held", "profile"),
        "Jobs": ("list", "top", "enqueue", "retry", "kill", "delete", "undo", "requeue", "cancel", "set-priority"),
        "Queues": ("queues", "stats", "memory", "clear", "pause-queue", "unpause-queue"),
        "Processes": ("processes", "stack", "quiet", "stop", "dump", "ping"),
        "Classes": ("pause", "resume", "paused", "drop", "defer", "deferred", "flags"),
        "Limits, locks and counters": ("limits", "locks", "leases", "counters"),
    }


jobs = JobsGroup(
    "jobs",
    chain(_JOB_COMMANDS, *(one.job_commands for one in features())),
    "Push jobs; show queues, processes and jobs, explain why jobs do not run, and act on them.",
)
