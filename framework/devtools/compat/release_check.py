"""Compare the workers of a project with the manifest of a release."""

from datetime import date

from framework.cli.project import Project
from framework.devtools.compat import manifest
from framework.devtools.compat.compare import ReleaseComparison, ServedQueues
from framework.devtools.compat.findings import CompatFinding
from framework.devtools.compat.manifest import Manifest
from framework.route.topology import queues_on


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
    # Without queues.yml a process serves the queues of all loaded classes.
    served = [line.name for line in settings.queues] or {
        queue for shard in settings.shards for queue in queues_on(project.router, project.declarations.values(), shard)
    }
    return ReleaseComparison(last, today, ServedQueues(served, list(settings.shards), settings.config_label)).findings()
