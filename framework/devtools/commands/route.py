"""``route``: show queue, shard and rule of each worker, and check the rules."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

import click

from framework.admin.queue_reader import misplaced_jobs, read_live_queues
from framework.command_line import EXIT_FAILED
from framework.declare.declaration import Declaration
from framework.devtools.compat.manifest import read_manifest
from framework.route.router import Router
from framework.route.rule_checks import RuleChecks, RuleFinding, unserved_queues
from framework.route.topology import ShardSplit, locations_of, splits_by_rules, splits_observed
from framework.shard.shards import open_shards
from framework.terminal.options import modules_option
from framework.terminal.output import columns, echo, echo_lines, refuse_unknown, reports_errors, unknown_worker_message
from framework.terminal.project import Project, load_project
from framework.terminal.shards import progress_reporter
from framework.text import format_count

_HEADINGS = ("WORKER", "QUEUE", "SHARD", "RULE")
_NO_RULE = "(none: the generated name on main)"


@click.command("route")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@click.option("--explain", is_flag=True, help="Show for each rule whether it matches the worker.")
@click.option(
    "--lint",
    is_flag=True,
    help="Check for rules that are probably mistakes. The exit status is 1 when there are findings.",
)
@click.option("--live", is_flag=True, help="With --lint: ask each shard which queues its processes serve.")
@modules_option
@reports_errors
def route(names: Sequence[str], *, explain: bool, lint: bool, live: bool, modules: Sequence[str]) -> None:
    """Show the queue, the shard and the routing rule of each WORKER, or of all.

    A WORKER is named by its wire name.
    """
    if lint and (names or explain):
        raise click.UsageError("--lint checks all workers: it goes with neither names nor --explain.")
    if live and not lint:
        raise click.UsageError("--live needs --lint.")
    project = load_project(modules)
    refuse_unknown(names, project.workers, unknown_worker_message)
    chosen = [project.declarations[name] for name in names or project.workers]
    if lint:
        _lint(project, live=live)
    elif explain:
        echo_lines(line for declaration in chosen for line in _explanation(project.router, declaration))
    else:
        echo_lines(_table(project.router, chosen))


def _table(router: Router, declarations: Sequence[Declaration]) -> Iterator[str]:
    rows = [_HEADINGS, *(_row(router, declaration) for declaration in declarations)]
    return columns(rows)


def _row(router: Router, declaration: Declaration) -> tuple[str, str, str, str]:
    target = router.route(declaration)
    own = [f"{name} by the class" for name in ("queue", "shard") if getattr(declaration, name) is not None]
    rule = "  ".join([target.rule or _NO_RULE, *own])
    return declaration.wire_name, target.queue, ", ".join(router.shards_of(declaration)), rule


def _explanation(router: Router, declaration: Declaration) -> Iterator[str]:
    target = router.route(declaration)
    rule = f"rule {target.rule}" if target.rule is not None else "no rule: the generated name on main"
    shards = ", ".join(router.shards_of(declaration))
    yield f"{declaration.wire_name}: queue {target.queue} on shard {shards} ({rule})"
    for verdict in router.explain(declaration):
        word = "decides" if verdict.decides else "too late" if verdict.matches else "no match"
        queue = verdict.rule.queue or declaration.generated_queue
        yield f"  {word:9} {verdict.rule.query}  ({verdict.reason}): queue {queue}, shard {verdict.rule.shard or 'main'}"
    for name in ("queue", "shard"):
        value = getattr(declaration, name)
        if value is not None and (name == "queue" or declaration.several_shards is None):
            yield f"  the class has {name} = {value!r}, which overrides the rules"
    if declaration.several_shards is not None:
        yield f"  the class has shard = {declaration.several_shards}: the lock key of a job chooses one, else its id"
    if declaration.retry_queue is not None:
        yield f"  the class has retry_queue = {declaration.retry_queue!r}: its retries go there"


def _lint(project: Project, *, live: bool) -> None:
    settings, declarations = project.settings, list(project.declarations.values())
    # Without config/queues.yml a process serves the queues of all loaded classes.
    served = [line.name for line in settings.queues] or {
        place.queue for place in locations_of(project.router, declarations)
    }
    found = RuleChecks(project.router, declarations, served).findings(settings.namespace_weights)
    found += (RuleFinding("split", split.place, str(split)) for split in _splits(project, declarations, live=live))
    if live:
        found += _live_findings(project)
    for finding in sorted(found, key=lambda finding: not finding.is_error):
        echo(finding)
    failing = sum(finding.is_error for finding in found)
    looked = f"{format_count(len(project.router.compiled_rules), 'rule')}, {format_count(len(declarations), 'worker')}"
    echo(f"{looked}: {format_count(failing, 'finding')}")
    if failing:
        sys.exit(EXIT_FAILED)


def _splits(project: Project, declarations: list[Declaration], *, live: bool) -> Iterator[ShardSplit]:
    """Yield classes with limits and locks on several shards: by rules, by the last release, and by existing jobs."""
    source = project.settings.config_file_label("application.yml")
    yield from splits_by_rules(project.router, declarations, project.settings.limits, source=source)
    yield from _splits_since_release(project, declarations)
    seen: dict[str, dict[str, str]] = {}
    if live:
        with closing(open_shards(project.settings, role="lint")) as shards:
            for shard, classes in misplaced_jobs(shards, project.router, declarations, progress_reporter("lint")):
                for name, where in classes.items():
                    seen.setdefault(name, {})[shard] = where
    yield from splits_observed(project.router, declarations, seen, place_template="shard {shard}")


def _splits_since_release(project: Project, declarations: Sequence[Declaration]) -> Iterator[ShardSplit]:
    last = read_manifest(project.released, project.released.name)
    if last is None:
        return
    then = {
        name: dict.fromkeys(entry.shards, f"its route in release {last.release}")
        for name, entry in last.workers.items()
    }
    yield from splits_observed(
        project.router, declarations, then, place_template=f"{project.released.name}: the rules have changed"
    )


def _live_findings(project: Project) -> Iterator[RuleFinding]:
    found = locations_of(project.router, project.declarations.values())
    with closing(open_shards(project.settings, role="lint")) as shards:
        for shard, state in read_live_queues(shards):
            if state.failure is not None:
                yield RuleFinding("unserved", f"shard {shard}", f"cannot be asked: {state.failure}. Is it running?")
                continue
            routed = {
                place.queue: [one.wire_name for one in users] for place, users in found.items() if place.shard == shard
            }
            yield from unserved_queues(shard, state.served, state.waiting, routed)
