"""The details of a class, a queue, a process or a place of held jobs: what the readings have of it, and the next commands."""

from collections.abc import Iterable, Iterator, Sequence

from framework.admin import HeldPlace, Queue, RunningJob, WorkerProcess
from framework.admin.explain_class import WINDOW_MIN
from framework.admin.rates import ShardRates
from framework.cli.top.facts import ClassFigures, ShardFacts
from framework.cli.top.state import HEADINGS, TableRow
from framework.command_line import remedy_command
from framework.text import format_age, format_count

_MOST = 20
"""The jobs or processes that are listed."""


def detail_lines(row: TableRow, readings: Sequence[tuple[ShardFacts, ShardRates]]) -> Iterator[str]:
    """Yield the name of the thing, the cells of its row, and what belongs to it."""
    shard = row.cells[0].text
    facts = next(facts for facts, _ in readings if facts.shard == shard)
    yield f"{row.cells[1].text} on {shard}"
    for heading, cell in zip(HEADINGS[row.table][2:], row.cells[2:], strict=True):
        yield f"  {heading.lower():<14} {cell.text}"
    yield from _of_subject(row, facts)


def _of_subject(row: TableRow, facts: ShardFacts) -> Iterator[str]:
    match row.subject:
        case ClassFigures() as one:
            yield f"  {'runs':<14} {one.runs.processed:,} in the last {WINDOW_MIN} to {WINDOW_MIN + 1} minutes"
            yield from _held([place for place in facts.held if place.name == one.name], facts.now)
            yield from _jobs((job for job in facts.jobs if job.worker == one.name), facts.now)
            yield from _commands(("explain", one.name), ("top", "dead", "--class", one.name, "--by", "error"))
        case Queue() as queue:
            serving = [process for process in facts.processes if queue.name in process.queues]
            for number, process in enumerate(serving[:_MOST]):
                state = ", quiet" if process.is_quiet else ""
                label = "" if number else "served by"
                yield f"  {label:<14} {process.identity} ({process.busy}/{process.slots} busy{state})"
            yield from _held([place for place in facts.held if place.name == f"queue/{queue.name}"], facts.now)
            yield from _jobs((job for job in facts.jobs if job.queue == queue.name), facts.now)
            yield from _commands(("top", f"queue:{queue.name}"), ("list", f"queue:{queue.name}"))
        case WorkerProcess() as process:
            for queue_name, runs in sorted((process.runs or {}).items()):
                yield f"  {'ended':<14} {format_count(runs, 'run')} of {queue_name}"
            yield from _jobs((job for job in facts.jobs if job.process == process.identity), facts.now)
            yield from _commands(("stack", process.identity), ("quiet", process.identity))
        case HeldPlace() as place:
            look = "paused" if place.kind == "paused" else "limits"
            yield from _commands((look, *([place.name] if look == "limits" else [])), ("list", "held"))
        case _:
            return


def _held(places: Iterable[HeldPlace], now: float) -> Iterator[str]:
    for place in places:
        by = "limit" if place.kind == "waiting" else "pause"
        yield f"  {'held by':<14} its {by}: {format_count(place.jobs, 'job')}, the oldest for {format_age(now, place.since)}"


def _jobs(jobs: Iterable[RunningJob], now: float) -> Iterator[str]:
    longest = sorted(jobs, key=lambda job: job.since or 0.0)
    for number, job in enumerate(longest[:_MOST]):
        label = "" if number else "running"
        yield f"  {label:<14} {job.worker or '-'} {job.jid or '-'} for {format_age(now, job.since)} in {job.process}"
    if len(longest) > _MOST:
        yield f"  {'':<14} and {len(longest) - _MOST:,} more"


def _commands(*commands: Sequence[str]) -> Iterator[str]:
    for number, words in enumerate(commands):
        label = "" if number else "look further"
        yield f"  {label:<14} {remedy_command('jobs', *words)}"
