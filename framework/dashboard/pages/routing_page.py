"""The routing rules with the classes that each one routes, and what another rule would change: ``jobs explain --assume rule=``."""

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.route.router import Router, open_router
from framework.settings.model import RoutingRule
from framework.text import joined


class RoutingPage(Page):
    """Show where the jobs of each class go. ``query``, ``queue`` and ``to`` of the query assume a rule before all others."""

    name = "routing"
    path = "/routing"
    title = "Routing"
    menu = "control"
    mends = ("unserved",)
    of_jobs = True

    async def read(self, view: View) -> Facts:
        """Route each loaded class by the rules, and by the assumed one.

        Raises:
            ValueError: the assumed rule is not valid.
        """
        assumed = _assumed_rule(view)
        now = view.installation.router
        then = None if assumed is None or now is None else _router_with(view, now, assumed)
        declarations = view.installation.classes.declarations or {}
        seen = [
            one
            for name, one in sorted(declarations.items())
            if name == one.wire_name and any(view.may("read", shard, name) for shard in view.shards)
        ]
        classes = [] if now is None else [_facts(one, now, then) for one in seen]
        return {
            "query": view.query.get("query", ""),
            "queue": view.query.get("queue", ""),
            "to": view.query.get("to", ""),
            "rules": [
                {"query": one.query, "queue": one.queue, "shard": one.shard}
                for one in view.installation.settings.routing_rules
            ],
            "is_assumed": assumed is not None,
            "moved": sum(1 for one in classes if one["then"] is not None),
            # The classes that the assumed rule would move come first.
            "classes": sorted(classes, key=lambda one: (one["then"] is None, one["class"])),
        }


def _assumed_rule(view: View) -> RoutingRule | None:
    query = view.query.get("query", "").strip()
    if not query:
        return None
    return RoutingRule(query, view.query.get("queue", "").strip() or None, view.query.get("to", "").strip() or None)


def _router_with(view: View, now: Router, rule: RoutingRule) -> Router:
    settings = view.installation.settings
    try:
        router = open_router(settings.model_copy(update={"routing_rules": (rule, *settings.routing_rules)}))
    except ConfigurationError as error:
        raise ValueError(joined(problem.message for problem in error.problems)) from None
    router.use_moves(now.moves)
    return router


def _facts(one: Declaration, now: Router, then: Router | None) -> Facts:
    route = shown_route(now, one)
    other = None if then is None else shown_route(then, one)
    moves = other is not None and (other["queue"], other["shard"]) != (route["queue"], route["shard"])
    return {"class": one.wire_name, "now": route, "then": other if moves else None}


def shown_route(router: Router, one: Declaration) -> Facts:
    """Return the queue, the shards and the deciding rule of a class."""
    queue, _, rule = router.route(one)
    shards = ", ".join(router.shards_of(one))
    return {"queue": queue, "shard": shards, "rule": None if rule is None else str(rule)}
