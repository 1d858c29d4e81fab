"""``jobs``: push jobs, show them, say why they do not run, and act on them."""

from collections.abc import Mapping, Sequence

import click

from framework.cli.jobs_actions import COMMANDS as ACTIONS
from framework.cli.jobs_cancel import cancel
from framework.cli.jobs_counters import counters
from framework.cli.jobs_deferred import deferred
from framework.cli.jobs_enqueue import enqueue
from framework.cli.jobs_explain import explain
from framework.cli.jobs_flags import COMMANDS as FLAGS
from framework.cli.jobs_held import held
from framework.cli.jobs_leases import leases
from framework.cli.jobs_limits import limits
from framework.cli.jobs_list import list_jobs
from framework.cli.jobs_locks import locks
from framework.cli.jobs_pause import COMMANDS as PAUSES
from framework.cli.jobs_priority import set_priority
from framework.cli.jobs_processes import COMMANDS as PROCESSES
from framework.cli.jobs_profile import profile
from framework.cli.jobs_queues import COMMANDS as QUEUES
from framework.cli.jobs_show import show
from framework.cli.jobs_stats import stats
from framework.cli.jobs_story import story
from framework.cli.workflow_commands import workflow
from framework.terminal.groups import SectionedGroup


class JobsGroup(SectionedGroup):
    """The commands by what an operator wants to do."""

    sections: Mapping[str, Sequence[str]] = {
        "Why does nothing happen": ("explain", "show", "story", "workflow", "held", "profile"),
        "Jobs": ("list", "enqueue", "retry", "kill", "delete", "requeue", "cancel", "set-priority"),
        "Queues": ("queues", "stats", "clear", "pause-queue", "unpause-queue"),
        "Processes": ("processes", "quiet", "stop", "dump", "ping"),
        "Classes": ("pause", "resume", "paused", "drop", "defer", "deferred", "flags"),
        "Limits, locks and counters": ("limits", "locks", "leases", "counters"),
    }


@click.group("jobs", cls=JobsGroup, context_settings={"help_option_names": ["-h", "--help"]})
def jobs() -> None:
    """Push jobs; show queues, processes and jobs, explain why jobs do not run, and act on them."""


for command in (
    *(enqueue, stats, *QUEUES, *PROCESSES, list_jobs, show, story, workflow, *ACTIONS, cancel, set_priority),
    *(explain, held, limits, locks, leases, *PAUSES, deferred, *FLAGS, counters, profile),
):
    jobs.add_command(command)
