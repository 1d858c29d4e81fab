"""``application-worker``: every command of the framework under one name."""

import click

from framework.terminal.lazy import LazyCommand, LazyGroup
from framework.version import VERSION

_COMMANDS_PACKAGE = "framework.cli"
_DEVTOOLS = "framework.devtools.commands"

COMMANDS = {
    "worker": LazyCommand(f"{_COMMANDS_PACKAGE}.worker", "worker", "Run one worker process until TERM or INT."),
    "cluster": LazyCommand(f"{_COMMANDS_PACKAGE}.cluster", "cluster", "Run a supervisor and its worker processes."),
    "generate-queues": LazyCommand(
        f"{_DEVTOOLS}.generate_queues",
        "generate_queues",
        "Write the generated files: all workers, and their queues.",
    ),
    "route": LazyCommand(f"{_DEVTOOLS}.route", "route", "Show queue, shard and rule of workers, and check the rules."),
    "attributes": LazyCommand(
        f"{_DEVTOOLS}.attributes", "attributes", "List what a worker class may declare, or explain attributes."
    ),
    "lint-workers": LazyCommand(
        f"{_DEVTOOLS}.lint_workers",
        "lint_workers",
        "Find faults in the source of workers, without importing it.",
    ),
    "check-compat": LazyCommand(
        f"{_DEVTOOLS}.check_compat",
        "check_compat",
        "Check whether a deploy would break jobs of the last release.",
    ),
    "retired": LazyCommand(
        f"{_COMMANDS_PACKAGE}.retired", "retired", "Count the jobs that are left of retired classes."
    ),
    "migrate-jobs": LazyCommand(
        f"{_COMMANDS_PACKAGE}.migrate_jobs", "migrate_jobs", "Move waiting jobs to other queues of their shard."
    ),
    "jobs": LazyCommand(
        f"{_COMMANDS_PACKAGE}.jobs", "jobs", "Show jobs that do not run, explain why, and release them."
    ),
    "top": LazyCommand(
        f"{_COMMANDS_PACKAGE}.top.command", "top", "Show queues, processes and jobs, live, in a terminal."
    ),
    "flags": LazyCommand(f"{_COMMANDS_PACKAGE}.flags", "flags", "List, set and clear the application's feature flags."),
    "limiters": LazyCommand(
        f"{_COMMANDS_PACKAGE}.limiters", "limiters", "Show rate limiters, and resize or reset them."
    ),
    "batches": LazyCommand(
        f"{_COMMANDS_PACKAGE}.batch_commands", "batches", "List batches of jobs, show one, cancel or delete it."
    ),
    "workflows": LazyCommand(
        f"{_COMMANDS_PACKAGE}.workflow_commands", "workflows", "List workflows, cancel or delete one."
    ),
    "cron": LazyCommand(f"{_COMMANDS_PACKAGE}.cron", "cron", "Show the schedule, and change its entries."),
    "tasks": LazyCommand(
        f"{_COMMANDS_PACKAGE}.task_commands", "tasks", "Show tasks, cancel and retry them, and make their tables."
    ),
    "ledger": LazyCommand(
        f"{_COMMANDS_PACKAGE}.ledger", "ledger", "Find recorded jobs that Redis has lost, and enqueue them again."
    ),
    "pushes": LazyCommand(
        f"{_COMMANDS_PACKAGE}.pushes", "pushes", "Show and replay the pushes that are kept while Redis is down."
    ),
    "encryption": LazyCommand(
        f"{_COMMANDS_PACKAGE}.encryption", "encryption", "Make keys for encrypted arguments, and show the jobs of each."
    ),
    "payloads": LazyCommand(
        f"{_COMMANDS_PACKAGE}.payloads", "payloads", "Show and sweep the store of large arguments."
    ),
    "store": LazyCommand(f"{_COMMANDS_PACKAGE}.store", "store", "Start, stop or show the development stores."),
    "acl": LazyCommand(f"{_COMMANDS_PACKAGE}.acl", "acl", "Print the least Redis rights of a role."),
}

main = LazyGroup("application-worker", COMMANDS, "Run worker processes and manage their jobs.")
click.version_option(VERSION, prog_name="application-worker")(main)
