"""``jobs``: show jobs that do not run, say why, and release them."""

import click

from framework.cli.groups import CommandGroup
from framework.cli.jobs_counters import counters
from framework.cli.jobs_deferred import deferred
from framework.cli.jobs_explain import explain
from framework.cli.jobs_flags import COMMANDS as FLAGS
from framework.cli.jobs_held import held
from framework.cli.jobs_limits import limits
from framework.cli.jobs_locks import locks
from framework.cli.jobs_pause import COMMANDS as PAUSES


@click.group("jobs", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def jobs() -> None:
    """Show why jobs do not run, and release them: limits, locks, pauses and deferrals."""


for command in (explain, held, limits, locks, *PAUSES, deferred, *FLAGS, counters):
    jobs.add_command(command)
