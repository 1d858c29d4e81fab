"""``jobs pause`` and ``resume``: parking the jobs of a class by hand, and giving them back to their queues."""

from collections.abc import Sequence

import click

from framework.cli.failure import explained
from framework.cli.jobs_flags import checked_class, reasoned, refuse_unknown_class, set_on
from framework.cli.on_shards import OnShards
from framework.cli.options import modules_option, shard_option
from framework.cli.terminal import echo
from framework.flags.flag import pause_flag
from framework.flags.redis_flags import unset_flag
from framework.policies.pause.keeper import Resumed, resume
from framework.shard.shard import Shard


@click.command("pause")
@click.argument("worker", metavar="CLASS")
@reasoned
@modules_option
@shard_option
@explained
def pause(worker: str, *, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]) -> None:
    """Park jobs of CLASS as they come up to run.

    They keep all they have. Any class can be paused: it need not declare pause_control.
    """
    on, name = OnShards(names), checked_class(worker, modules)
    set_on(on, pause_flag(name), 100, reason, lasts_s, f"jobs of {name} are parked")
    on.end()


@click.command("resume")
@click.argument("worker", metavar="CLASS")
@modules_option
@shard_option
@explained
def resume_(worker: str, *, modules: Sequence[str], names: Sequence[str]) -> None:
    """End the pause of CLASS and give its parked jobs back to their queues.

    They keep their order and are the next to run.

    Works for classes that do not exist any more. What a strategy keeps paused stays parked until that ends.
    """
    on = OnShards(names)

    def act(shard: Shard) -> tuple[bool, Resumed]:
        ended = unset_flag(shard.client, pause_flag(worker))
        # Whether a strategy pauses the class, the processes say that know it.
        return ended, resume(shard.client, worker, b"", known=False)

    found = False
    for shard, (ended, done) in on.each(act):
        found = found or ended or done.paused or bool(done.moved + done.stayed)
        echo(f"{shard}: {_said(worker, done, ended=ended)}")
    on.end()
    if not found:
        refuse_unknown_class(worker, modules)


def _said(worker: str, done: Resumed, *, ended: bool) -> str:
    parts = ["the pause has ended" if ended else f"no operator had paused {worker}"]
    if done.paused:
        parts.append("a strategy keeps it paused, or somebody has paused it again: its jobs stay parked")
    else:
        parts.append(f"{done.moved:,} parked jobs are back in their queues")
    if done.stayed:
        parts.append(f"{done.stayed:,} stay parked, as the keys of their queues are no lists")
    return "; ".join(parts)


COMMANDS: tuple[click.Command, ...] = (pause, resume_)
