"""Compare the workers of a project with the manifest of a release."""

from datetime import date

from framework.devtools.compat import manifest
from framework.devtools.compat.compare import ReleaseComparison, ServedQueues
from framework.devtools.compat.findings import CompatFinding
from framework.devtools.compat.manifest import Manifest
from framework.route.topology import former_locations, queues_on
from framework.settings.released_queues import ReleasedQueues
from framework.terminal.project import Project


def snapshot_of(project: Project, release: str, day: date) -> Manifest:
    """Return the manifest of today's workers, as the release of this name."""
    settings = project.settings
    return manifest.snapshot(
        project.declarations.values(),
        project.router,
        strict=settings.strict_arguments,
        retired=settings.retired_workers,
        release=release,
        day=day,
    )


def compare_with(project: Project, last: Manifest, today: Manifest) -> list[CompatFinding]:
    """Return the effects of a deploy of today's workers on jobs of the last release."""
    settings = project.settings
    listed = [line.name for line in settings.queues]
    # Without queues.yml a process serves the queues of all loaded classes, and those of earlier releases.
    served = listed or _served_without_file(project, last)
    served_queues = ServedQueues(served, list(settings.shards), settings.config_label, has_file=bool(listed))
    return ReleaseComparison(last, today, served_queues).findings()


def _served_without_file(project: Project, last: Manifest) -> set[str]:
    declarations = list(project.declarations.values())
    places = {name: tuple((queue, entry.shard) for queue in entry.queues) for name, entry in last.workers.items()}
    released = ReleasedQueues(places, tuple(last.former_locations))
    former = {place.queue for place in former_locations(project.router, declarations, released)}
    return former.union(*(queues_on(project.router, declarations, shard) for shard in project.settings.shards))
