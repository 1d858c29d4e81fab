"""``jobs drop``, ``defer`` and ``flags``: set, clear and show the operators' flags of a class, each with a reason and an end."""

from collections.abc import Callable, Sequence

import click

from framework.features.flags.commands import print_flags
from framework.features.flags.flag import Flag, drop_flag, is_class_flag, run_flag
from framework.features.flags.redis_flags import MAX_AGE_S, set_flag, unset_flag
from framework.process.identity import operator_name
from framework.shard.shard import Shard
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import (
    DURATION_HELP,
    REASON_HELP,
    DurationOption,
    check_reason,
    json_option,
    modules_option,
    reason_and_duration_options,
    shard_option,
)
from framework.terminal.output import echo, reports_errors
from framework.terminal.project import refuse_unknown_class, resolve_class
from framework.terminal.shards import ShardCommand, recorded
from framework.text import format_duration

percent_option = click.option(
    "--percent", type=click.IntRange(1, 100), default=100, show_default=True, help="Act on this percentage of the jobs."
)


def set_flag_on_shards(
    on: ShardCommand,
    name: str,
    percentage: float,
    reason: str,
    lasts_s: float,
    effect: str,
    then: Callable[[Shard], None] | None = None,
) -> None:
    """Set a flag on every shard, call ``then`` with it, and print its effect for each."""
    flag = Flag(name, percentage, check_reason(reason), operator_name())

    def act(shard: Shard) -> None:
        set_flag(shard.client, flag, lasts_s)
        if then is not None:
            then(shard)

    for shard, _ in on.each(recorded(act)):
        echo(f"{shard}: {effect}, for {format_duration(lasts_s)} ({name})")
    if on.answered:
        processes = f"process of {' and '.join(on.answered)}" if on.unanswered else "process"
        echo(f"Every {processes} knows within {MAX_AGE_S:g} s.")


@click.command("drop")
@click.argument("worker", metavar="CLASS")
@percent_option
@reason_and_duration_options
@modules_option
@shard_option
@reports_errors
def drop(
    worker: str, *, percent: int, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]
) -> None:
    """Drop jobs of CLASS when they are fetched.

    A dropped job is lost: only the log and a counter record it.
    """
    on, name = ShardCommand(names), resolve_class(worker, modules)
    set_flag_on_shards(on, drop_flag(name), percent, reason, lasts_s, f"{percent} % of the jobs of {name} are dropped")
    on.exit_if_unanswered()


@click.command("defer")
@click.argument("worker", metavar="CLASS")
@percent_option
@reason_and_duration_options
@modules_option
@shard_option
@reports_errors
def defer(
    worker: str, *, percent: int, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]
) -> None:
    """Defer jobs of CLASS when they are fetched.

    A deferred job waits in the schedule set for about the setting flags.defer_delay, 300 s, and may be deferred again.
    """
    on, name = ShardCommand(names), resolve_class(worker, modules)
    set_flag_on_shards(
        on, run_flag(name), 100 - percent, reason, lasts_s, f"{percent} % of the jobs of {name} are deferred"
    )
    on.exit_if_unanswered()


@click.group("flags", cls=DefaultShowGroup)
def flags() -> None:
    """Show and clear the flags that operators set on classes.

    Without a command the flags are shown.
    """


@flags.command("clear")
@click.argument("worker", metavar="CLASS")
@click.option(
    "--percent", type=click.IntRange(1, 99), help="Run only this percentage of the jobs, and defer the others."
)
@click.option("--reason", help=REASON_HELP)
@click.option("--for", "lasts_s", type=DurationOption(), help=DURATION_HELP)
@modules_option
@shard_option
@reports_errors
def clear_flags(
    worker: str,
    *,
    percent: int | None,
    reason: str | None,
    lasts_s: float | None,
    modules: Sequence[str],
    names: Sequence[str],
) -> None:
    """Clear the drop flag and the defer flag of CLASS, so that its jobs run again.

    To start slowly, give --percent with --reason and --for: 10, then 50, then clear without --percent.
    """
    if (percent is None) != (reason is None) or (percent is None) != (lasts_s is None):
        raise click.UsageError(
            "--percent, --reason and --for belong together: give all of them, or none to run all jobs."
        )
    on = ShardCommand(names)
    name = worker if percent is None else resolve_class(worker, modules)
    cleared = [drop_flag(name)] if percent is not None else [drop_flag(name), run_flag(name)]
    none = "no flag of the class" if percent is None else "no drop flag of the class"
    found = False
    for shard, ended in on.each(recorded(lambda one: [flag for flag in cleared if unset_flag(one.client, flag)], len)):
        found = found or bool(ended)
        echo(f"{shard}: {', '.join(ended) or none} {'ended' if ended else 'was set'}")
    if percent is not None and reason is not None and lasts_s is not None:
        set_flag_on_shards(on, run_flag(name), percent, reason, lasts_s, f"{percent} % of the jobs of {name} run")
    on.exit_if_unanswered()
    if not found:
        refuse_unknown_class(name, modules)


@flags.command("show")
@shard_option
@json_option
@reports_errors
def show(*, names: Sequence[str], as_json: bool) -> None:
    """Show every flag that operators have set on classes.

    The table shows the percentage of jobs, the operator, the end and the reason. The flag run_jobs_CLASS runs jobs and
    defers the others; drop_jobs_CLASS drops them; pause_jobs_CLASS holds them.
    """
    print_flags(names, is_class_flag, as_json=as_json)
