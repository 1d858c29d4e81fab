"""``jobs pause`` and ``resume``: parking the jobs of a class by hand, and giving them back to their queues."""

from collections.abc import Sequence

import click

from framework.cli.errors import reports_errors
from framework.cli.jobs_flags import (
    reason_and_duration_options,
    refuse_unknown_class,
    resolve_class,
    set_flag_on_shards,
)
from framework.cli.options import modules_option, shard_option
from framework.cli.shards import ShardCommand
from framework.cli.terminal import echo
from framework.flags.flag import pause_flag
from framework.flags.redis_flags import unset_flag
from framework.policies.pause.resumer import ResumeResult, resume
from framework.shard.shard import Shard


@click.command("pause")
@click.argument("worker", metavar="CLASS")
@reason_and_duration_options
@modules_option
@shard_option
@reports_errors
def pause(worker: str, *, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]) -> None:
    """Park jobs of CLASS as they come up to run.

    They keep all they have. Any class can be paused: it need not declare pause_control.
    """
    on, name = ShardCommand(names), resolve_class(worker, modules)
    set_flag_on_shards(on, pause_flag(name), 100, reason, lasts_s, f"jobs of {name} are parked")
    on.exit_if_unanswered()


@click.command("resume")
@click.argument("worker", metavar="CLASS")
@modules_option
@shard_option
@reports_errors
def resume_(worker: str, *, modules: Sequence[str], names: Sequence[str]) -> None:
    """End the pause of CLASS and give its parked jobs back to their queues.

    They keep their order and are the next to run.

    Works for classes that do not exist any more. What a strategy keeps paused stays parked until that ends.
    """
    on = ShardCommand(names)

    def act(shard: Shard) -> tuple[bool, ResumeResult]:
        ended = unset_flag(shard.client, pause_flag(worker))
        # Whether a strategy pauses the class, the processes say that know it.
        return ended, resume(shard.client, worker, b"", class_known=False)

    found = False
    for shard, (ended, done) in on.each(act):
        found = found or ended or done.paused or bool(done.moved + done.blocked)
        echo(f"{shard}: {_result_text(worker, done, ended=ended)}")
    on.exit_if_unanswered()
    if not found:
        refuse_unknown_class(worker, modules)


def _result_text(worker: str, done: ResumeResult, *, ended: bool) -> str:
    parts = ["the pause has ended" if ended else f"no operator had paused {worker}"]
    if done.paused:
        parts.append("a strategy keeps it paused, or somebody has paused it again: its jobs stay parked")
    else:
        parts.append(f"{done.moved:,} parked jobs are back in their queues")
    if done.blocked:
        parts.append(f"{done.blocked:,} stay parked, as the keys of their queues are no lists")
    return "; ".join(parts)


COMMANDS: tuple[click.Command, ...] = (pause, resume_)
