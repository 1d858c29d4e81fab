"""``route``: where each worker's jobs go, and which rule says so."""

from collections.abc import Sequence

import click

from framework.cli.failure import explained
from framework.cli.project import load_project, refuse_unknown
from framework.declare.declaration import Declaration
from framework.route.router import Router


@click.command("route")
@click.argument("names", nargs=-1, metavar="[WORKER]...")
@click.option("--explain", is_flag=True, help="Show what every rule says about the worker.")
@click.option(
    "-r", "--require", "modules", multiple=True, metavar="MODULE", help="Load this instead of workers_module."
)
@explained
def route(names: Sequence[str], *, explain: bool, modules: Sequence[str]) -> None:
    """Show queue, shard and rule of the named workers (their wire names), or of all."""
    project = load_project(modules)
    declarations = project.declarations
    refuse_unknown(names, declarations)
    for name in names or declarations:
        _show(project.router, declarations[name], explain=explain)


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
