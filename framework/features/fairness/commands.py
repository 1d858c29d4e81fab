"""``jobs set-priority``: give waiting jobs another priority."""

from collections.abc import Sequence

import click

from framework.features.fairness.admin import PriorityChange, change_on_shard, check_level, outcome_text
from framework.shard.shard import Shard
from framework.terminal.options import ChoiceOption, check_jids, json_option, shard_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter, recorded
from framework.wire.sub_queues import LEVELS


@click.command("set-priority")
@click.argument("level", type=ChoiceOption(LEVELS), metavar="|".join(LEVELS))
@click.argument("jids", nargs=-1, metavar="JID...", required=True)
@shard_option
@json_option
@reports_errors
def set_priority(*, level: str, jids: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """Give jobs that wait another priority: in a queue, in the schedule set, or for a retry.

    A job in a queue moves behind the other jobs of its new level. Its class must declare `priority`.

    Status 1: an id is unknown, a job stays as it is, or a shard does not answer.
    """
    check_jids(jids)
    on = ShardCommand(names)
    wanted, chosen = check_level(level), list(dict.fromkeys(jids))

    def step(shard: Shard) -> list[PriorityChange]:
        progress = progress_reporter(shard.name)
        return [one for jid in chosen for one in change_on_shard(shard.client, shard.name, jid, wanted, progress)]

    act = recorded(step, lambda changed: sum(one.outcome == "done" for one in changed))
    changes = [one for _, found in on.each(act) for one in found]
    unknown = [jid for jid in chosen if all(one.jid != jid for one in changes)]
    if as_json:
        on.print_json({"priority": level, "jobs": [one._asdict() for one in changes], "unknown": unknown})
    else:
        for one in changes:
            echo(f"{one.shard}: {one.jid} ({one.place}): {outcome_text(one.outcome)}")
    for jid in unknown:
        echo(f"no job {jid} is on {' or '.join(on.answered) or 'any shard'}: it has ended, or never was", err=True)
    on.exit_unless(not unknown and all(one.outcome in ("done", "same") for one in changes))
