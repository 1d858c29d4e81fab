"""``jobs memory``: how much of a shard's memory each class fills in each place."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from framework.features.backlog.memory import measure_memory
from framework.shard.memory_report import OTHER, MemoryPart, ShardMemory, budget_of, classes_above_fair_share
from framework.terminal.options import json_option, shard_option
from framework.terminal.output import echo, echo_json, reports_errors
from framework.terminal.shards import ShardCommand, ShardTable
from framework.text import format_bytes


class _Parts(ShardTable[MemoryPart]):
    field = "memory"
    headings = ("CLASS", "PLACE", "JOBS", "BYTES")

    def row(self, one: MemoryPart, now: float) -> Sequence[str]:
        del now
        return one.cls or "-", one.place, f"{one.jobs:,}" if one.jobs else "-", format_bytes(one.bytes)

    def facts(self, one: MemoryPart) -> Mapping[str, Any]:
        return {"class": one.cls or None, "place": one.place, "jobs": one.jobs, "bytes": one.bytes}


@click.command("memory")
@click.option("--exact", is_flag=True, help="Read every job and every key: this takes minutes for millions.")
@click.option(
    "--limit", type=click.IntRange(1), default=30, show_default=True, help="Show at most this number of rows."
)
@shard_option
@json_option
@reports_errors
def memory(*, exact: bool, limit: int, names: Sequence[str], as_json: bool) -> None:
    """Show how much of the memory of a shard each class fills in each place.

    Places are those of jobs (queue, scheduled, deferred, retry, dead, interrupted, waiting at a limit, paused, in flight), and of the
    keys that jobs leave (locks, states, results, batches, and more). The place other is the rest of the memory that Redis uses.
    Numbers of jobs by place are exact; those of classes, and bytes, are estimated from a sample where there are many.

    Status 1: a shard does not answer.
    """
    on = ShardCommand(names)
    found = list(on.each(lambda shard: measure_memory(shard.client, on.settings.size_limit, exact=exact)))
    if as_json:
        echo_json([{"shard": shard, **_PARTS.facts(one)} for shard, measured in found for one in measured.parts])
    else:
        for shard, measured in found:
            _show(on, shard, measured, limit)
        for shard, measured in found:
            _show_budget(on, shard, measured)
    on.exit_if_unanswered()


_PARTS = _Parts()


def _show_budget(on: ShardCommand, shard: str, measured: ShardMemory) -> None:
    budget = budget_of(on.settings.shards[shard].memory_budget, measured.maxmemory, measured.total)
    if not budget:
        echo(f"{shard}: no budget is known: set shards.{shard}.memory_budget in bytes")
        return
    state = f"{measured.used / budget:.0%} of the budget of {format_bytes(budget)} (shards.{shard}.memory_budget)"
    above = classes_above_fair_share(measured.used, measured.by_class(), budget) if measured.used >= budget else {}
    held = f"; pushes of {', '.join(above)} are held back" if above else ""
    echo(f"{shard}: {state}{held}")


def _show(on: ShardCommand, shard: str, measured: ShardMemory, limit: int) -> None:
    shown = [one for one in measured.parts if one.place != OTHER]
    rows = [(shard, *_PARTS.row(one, 0.0)) for one in shown[:limit]]
    on.print_table(("SHARD", *_PARTS.headings), rows, f"No job and no key of jobs is on {shard}")
    if len(shown) > limit:
        echo(f"and {len(shown) - limit} further rows: --limit shows more")
    limit_text = f"of maxmemory {format_bytes(measured.maxmemory)}" if measured.maxmemory else "and has no maxmemory"
    echo(
        f"{shard}: Redis uses {format_bytes(measured.used)} {limit_text} ({measured.policy}); the places explain "
        f"{measured.explained:.0%} of it.{' Numbers are estimates.' if measured.is_estimate else ''}"
    )
