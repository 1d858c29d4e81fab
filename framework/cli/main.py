"""``application-worker``: every command of the framework under one name."""

from itertools import chain

import click

from framework.feature import Late, LateCommand, features
from framework.terminal.groups import LateGroup
from framework.version import VERSION

_OF_NO_FEATURE = (
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
    LateCommand("jobs", "Show jobs that do not run, explain why, and release them.", Late("framework.cli.jobs:jobs")),
    LateCommand("top", "Show queues, processes and jobs, live, in a terminal.", Late("framework.cli.top.command:top")),
    LateCommand("store", "Start, stop or show the development stores.", Late("framework.cli.store:store")),
    LateCommand("acl", "Print the least Redis rights of a role.", Late("framework.cli.acl:acl")),
)

main = LateGroup(
    "application-worker",
    chain(_OF_NO_FEATURE, *(one.commands for one in features())),
    "Run worker processes and manage their jobs.",
)
click.version_option(VERSION, prog_name="application-worker")(main)
