"""``application-worker``: every command of the framework under one name."""

import click

from framework.cli.lazy import LazyCommand, LazyGroup
from framework.version import VERSION

_PLACES = "framework.cli"

COMMANDS = {
    "worker": LazyCommand(f"{_PLACES}.worker", "worker", "Run one worker process until TERM or INT."),
    "cluster": LazyCommand(f"{_PLACES}.cluster", "cluster", "Keep a group of worker processes running."),
    "generate-queues": LazyCommand(
        f"{_PLACES}.generate_queues", "generate_queues", "Write the generated files: all workers, and their queues."
    ),
    "route": LazyCommand(f"{_PLACES}.route", "route", "Show queue, shard and rule of workers, and check the rules."),
    "attributes": LazyCommand(
        f"{_PLACES}.attributes", "attributes", "List what a worker class may declare, or explain attributes."
    ),
    "lint-workers": LazyCommand(
        f"{_PLACES}.lint_workers", "lint_workers", "Find faults in the source of workers, without importing it."
    ),
    "check-compat": LazyCommand(
        f"{_PLACES}.check_compat", "check_compat", "Tell whether a deploy would break jobs of the last release."
    ),
    "retired": LazyCommand(f"{_PLACES}.retired", "retired", "Count the jobs that are left of retired classes."),
    "migrate-jobs": LazyCommand(
        f"{_PLACES}.migrate_jobs", "migrate_jobs", "Move waiting jobs to other queues of their shard."
    ),
    "jobs": LazyCommand(f"{_PLACES}.jobs", "jobs", "Look at jobs that do not run, say why, and release them."),
    "store": LazyCommand(f"{_PLACES}.store", "store", "Start, stop or show the development stores."),
    "acl": LazyCommand(f"{_PLACES}.acl", "acl", "Print the least rights that a role needs of a Redis."),
}

main = LazyGroup("application-worker", COMMANDS, "Run worker processes and look after their jobs.")
click.version_option(VERSION, prog_name="application-worker")(main)
