"""``jobs``: looking at what waits, and at what it waits for; releasing it."""

import click

from framework.cli.jobs_explain import explain
from framework.cli.jobs_flags import COMMANDS as FLAGS
from framework.cli.jobs_limits import limits
from framework.cli.jobs_locks import locks
from framework.cli.jobs_pause import COMMANDS as PAUSES
from framework.cli.jobs_waiting import counters, deferred, parked, paused
from framework.cli.on_shards import Commands


@click.group("jobs", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def jobs() -> None:
    """Look at jobs that do not run, and release them: limits, locks, pauses, deferrals, and what stands in one job's way."""


for command in (explain, parked, limits, locks, paused, *PAUSES, deferred, *FLAGS, counters):
    jobs.add_command(command)
