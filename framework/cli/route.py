"""``route``: where each worker's jobs go, which rule says so, and what is wrong with the rules."""

import sys
from collections.abc import Iterator, Sequence

import click

from framework.cli.failure import EXIT_FAILED, explained, no_worker, refuse_unknown
from framework.cli.options import ModuleOption
from framework.cli.project import Project, load_project
from framework.cli.table import columns
from framework.declare.declaration import Declaration
from framework.route.lint import Finding, Lint, unserved_live
from framework.route.router import Router
from framework.wiring.live_queues import live_queues

_HEADINGS = ("WORKER", "QUEUE", "SHARD", "RULE")
_NO_RULE = "(none: the generated name on main)"


@click.command("route")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@click.option("--explain", is_flag=True, help="Show what every rule says about the worker.")
@click.option("--lint", is_flag=True, help="Look for rules that cannot be meant; exit 1 when there are findings.")
@click.option("--live", is_flag=True, help="With --lint: also ask each shard which queues its processes serve.")
@click.option(
    "-r", "--require", "modules", type=ModuleOption(), multiple=True, help="Load this instead of workers_module."
)
@explained
def route(names: Sequence[str], *, explain: bool, lint: bool, live: bool, modules: Sequence[str]) -> None:
    """Show queue, shard and rule of the named workers (their wire names), or of all."""
    if lint and (names or explain):
        raise click.UsageError("--lint looks at all workers: it goes with neither names nor --explain.")
    if live and not lint:
        raise click.UsageError("--live belongs to --lint.")
    project = load_project(modules)
    refuse_unknown(names, project.workers, no_worker)
    chosen = [project.declarations[name] for name in names or project.workers]
    if lint:
        _lint(project, live=live)
    elif explain:
        click.echo("\n".join(line for declaration in chosen for line in _explanation(project.router, declaration)))
    else:
        click.echo("\n".join(_table(project.router, chosen)))


def _table(router: Router, declarations: Sequence[Declaration]) -> Iterator[str]:
    rows = [_HEADINGS, *(_row(router, declaration) for declaration in declarations)]
    return columns(rows)


def _row(router: Router, declaration: Declaration) -> tuple[str, str, str, str]:
    target = router.route(declaration)
    own = [f"{name} by the class" for name in ("queue", "shard") if getattr(declaration, name) is not None]
    rule = "  ".join([target.rule or _NO_RULE, *own])
    return declaration.wire_name, target.queue, target.shard, rule


def _explanation(router: Router, declaration: Declaration) -> Iterator[str]:
    target = router.route(declaration)
    rule = f"rule {target.rule}" if target.rule is not None else "no rule: the generated name on main"
    yield f"{declaration.wire_name}: queue {target.queue} on shard {target.shard} ({rule})"
    for verdict in router.explain(declaration):
        word = "decides" if verdict.decides else "too late" if verdict.matches else "no match"
        queue = verdict.rule.queue or declaration.generated_queue
        yield f"  {word:9} {verdict.rule.query}  ({verdict.reason}): queue {queue}, shard {verdict.rule.shard or 'main'}"
    for name in ("queue", "shard"):
        value = getattr(declaration, name)
        if value is not None:
            yield f"  the class says {name} = {value!r}, which stands over the rules"
    if declaration.retry_queue is not None:
        yield f"  the class says retry_queue = {declaration.retry_queue!r}: its retries go there"


def _lint(project: Project, *, live: bool) -> None:
    settings, declarations = project.settings, list(project.declarations.values())
    served = [line.name for line in settings.queues] or ["default"]
    found = Lint(project.router, declarations, served).findings(settings.namespace_weights)
    if live:
        found += _live(project)
    for finding in sorted(found, key=lambda finding: not finding.fails):
        click.echo(finding)
    failing = sum(finding.fails for finding in found)
    looked = f"{len(project.router.lines)} rules, {len(declarations)} workers"
    click.echo(f"{looked}: {failing} {'finding' if failing == 1 else 'findings'}")
    if failing:
        sys.exit(EXIT_FAILED)


def _live(project: Project) -> Iterator[Finding]:
    for shard, state in live_queues(project.settings):
        if state.failure is not None:
            yield Finding("unserved", f"shard {shard}", f"cannot be asked: {state.failure}. Is it running?")
            continue
        routed: dict[str, list[str]] = {}
        for name, declaration in project.declarations.items():
            target = project.router.route(declaration)
            for queue in {target.queue, declaration.retry_queue or target.queue} if target.shard == shard else ():
                routed.setdefault(queue, []).append(name)
        yield from unserved_live(shard, state.served, state.waiting, routed)
