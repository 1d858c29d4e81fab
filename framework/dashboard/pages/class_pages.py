"""The worker classes: what each does now, and its attributes and rule."""

from collections.abc import Sequence

from framework.admin.access import ask
from framework.admin.explain_class import RunCounts, read_runs_by_class
from framework.admin.statistics import server_times
from framework.dashboard.pages.routing_page import shown_route
from framework.declare.declaration import Declaration
from framework.errors import UnknownNameError
from framework.execute.job_log import TARGETS
from framework.feature import all_features
from framework.pages.page import Action, Page
from framework.pages.view import Facts, View
from framework.text import Sentence, did_you_mean


class ClassesPage(Page):
    """Show each class that has run in the last minutes, or that is loaded."""

    name = "classes"
    path = "/classes"
    title = "Classes"
    menu = "work"
    of_jobs = True

    async def read(self, view: View) -> Facts:
        """Read the runs of the last minutes, the class that takes most time first."""
        found = await view.each(_read_runs)
        runs: dict[str, list[RunCounts]] = {}
        for shard, by_class in found.items():
            for name, counts in by_class.items():
                if view.may("read", shard, name):
                    runs.setdefault(name, []).append(counts)
        loaded = [name for name in view.installation.classes.declarations or {} if _sees(view, name)]
        classes = [_class_facts(view, name, runs.get(name, [])) for name in {*runs, *loaded}]
        return {"classes": sorted(classes, key=lambda one: (-one["seconds"], -one["runs"], one["class"]))}


class ClassPage(Page):
    """Show one class: its attributes, where its jobs go, and what it does."""

    name = "class"
    path = "/classes/{class:path}"
    title = "Class"
    of_jobs = True

    def __init__(self) -> None:
        self.actions: Sequence[Action] = [part.load()() for one in all_features() for part in one.class_actions]

    async def read(self, view: View) -> Facts:
        """Read the runs of the class on each shard.

        Raises:
            UnknownNameError: the class is not loaded, and has not run lately.
        """
        name = view.parameters["class"]
        found = await view.each(_read_runs)
        runs = {
            shard: counts[name] for shard, counts in found.items() if name in counts and view.may("read", shard, name)
        }
        declaration = view.installation.declaration(name) if _sees(view, name) else None
        if declaration is None and not runs and not view.unanswered:
            known = [one for one in view.installation.classes.declarations or {} if _sees(view, one)]
            raise UnknownNameError(
                Sentence("no class is named {name!r}{hint}", name=name, hint=did_you_mean(name, known))
            )
        return {
            **_class_facts(view, name, list(runs.values())),
            "shards": [{"shard": shard, **_run_facts([counts])} for shard, counts in runs.items()],
            "attributes": {} if declaration is None else _attributes(declaration),
            "targets": None if declaration is None else list(TARGETS[declaration.urgency]),
            "route": None if declaration is None else _route(view, declaration),
        }


def _read_runs(shard: str) -> dict[str, RunCounts]:
    now = server_times(shard).by_shard[shard]
    return ask(shard, lambda one: read_runs_by_class(one.client, now)).by_shard[shard]


def _sees(view: View, name: str) -> bool:
    return any(view.may("read", shard, name) for shard in view.shards)


def _class_facts(view: View, name: str, runs: list[RunCounts]) -> Facts:
    declaration = view.installation.declaration(name)
    return {
        "class": name,
        "feature_category": None if declaration is None else declaration.feature_category,
        "urgency": None if declaration is None else declaration.urgency,
        **_run_facts(runs),
    }


def _run_facts(runs: list[RunCounts]) -> Facts:
    processed, failed, seconds = (sum(one[at] for one in runs) for at in range(3))
    minutes = max((one.minutes for one in runs), default=1.0)
    succeeded = processed - failed
    return {
        "runs": processed,
        "failed": failed,
        "seconds": seconds,
        "per_minute": processed / minutes,
        "mean_s": seconds / succeeded if succeeded > 0 else None,
    }


def _attributes(one: Declaration) -> Facts:
    """Return the attributes as texts."""
    shown = {
        "urgency": one.urgency,
        "feature_category": one.feature_category,
        "resource_boundary": one.resource_boundary,
        "has_external_dependencies": one.has_external_dependencies,
        "version": one.version,
        "retry": one.retry,
        "timeout": one.timeout,
        "expires_in": one.expires_in,
        "idempotent": one.idempotent,
        "deduplicate": one.deduplicate,
        "tags": ", ".join(one.tags),
        "loggable_arguments": ", ".join(one.loggable_arguments),
        "track": one.track,
        **{name: value for name, value in one.facts.items() if not callable(value)},
    }
    return {name: str(value) for name, value in shown.items() if value not in (None, "", False)}


def _route(view: View, declaration: Declaration) -> Facts | None:
    router = view.installation.router
    if router is None:
        return None
    return shown_route(router, declaration)
