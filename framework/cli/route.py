"""``route``: where each worker's jobs go, and which rule says so."""

import sys
from collections.abc import Sequence
from typing import cast

import click

from framework.cli.failure import explained
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.route.router import Router
from framework.settings.load import load
from framework.settings.suggest import did_you_mean

EXIT_USAGE = 2


@click.command("route")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@click.option("--explain", is_flag=True, help="Show what every rule says about the worker.")
@click.option(
    "-r", "--require", "modules", multiple=True, metavar="MODULE", help="Load this instead of workers_module."
)
@explained
def route(names: Sequence[str], *, explain: bool, modules: Sequence[str]) -> None:
    """Show queue, shard and rule of the named workers (their wire names), or of all."""
    settings = load()
    registry.load(list(modules) or list(settings.workers_module))
    declarations = {
        declaration.wire_name: declaration
        for declaration in (cast("Declaration", worker.declaration()) for worker in registry.workers())
    }
    unknown = [name for name in names if name not in declarations]
    for name in unknown:
        click.echo(f"there is no worker {name!r}{did_you_mean(name, declarations)}", err=True)
    if unknown:
        sys.exit(EXIT_USAGE)
    router = Router(settings.routing_rules, settings.shards, settings.feature_categories)
    for name in names or declarations:
        _show(router, declarations[name], explain=explain)


def _show(router: Router, declaration: Declaration, *, explain: bool) -> None:
    target = router.route(declaration)
    rule = f"rule {target.rule}" if target.rule is not None else "no rule: the generated name on main"
    click.echo(f"{declaration.wire_name}: queue {target.queue} on shard {target.shard} ({rule})")
    if not explain:
        return
    for verdict in router.explain(declaration):
        word = "decides" if verdict.decides else "too late" if verdict.matches else "no match"
        click.echo(f"  {word:9} {verdict.rule.query}  ({verdict.reason})")
    for name in ("queue", "shard"):
        value = getattr(declaration, name)
        if value is not None:
            click.echo(f"  the class says {name} = {value!r}, which stands over the rules")
