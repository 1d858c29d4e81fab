"""Find the jobs in flight that a deploy would break. A pure function of the last manifest and today's workers.

A deploy has three situations (GitLab): (1) processes of the last release push jobs that today's code runs; (2) jobs were pushed
before the deploy and run after it; (3) today's code pushes jobs that processes of the last release run. A job of (1) and (2) is a
name, a version and a list of positions that a method of the last release took; today's method has to take it too. A job of (3)
with a class or version that the process does not know waits for another process and uses no retry.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from difflib import SequenceMatcher
from typing import NamedTuple

from framework.devtools.compat import findings, manifest
from framework.devtools.compat.findings import CompatFinding, find_incompatibilities, safe_changes
from framework.devtools.compat.manifest import Manifest, Parameters, ReleasedWorker, in_flight
from framework.route.rule_checks import serves
from framework.route.topology import former_locations, queues_on
from framework.settings.files import ReleasedQueues
from framework.terminal.project import Project


class ServedQueues(NamedTuple):
    """The queues and shards that today's processes serve: by config/queues.yml, or without it the queues of the classes."""

    queues: Collection[str]
    shards: Collection[str]
    config_label: str = "config"
    """The name of the config folder in messages."""
    has_file: bool = True
    """Whether config/queues.yml exists."""

    @property
    def source(self) -> str:
        """What serves the queues, for messages."""
        return f"{self.config_label}/queues.yml" if self.has_file else "by `cluster '*'`, and by processes without -q"


class ReleaseComparison:
    """Compare ``today`` with ``last``, on the date ``today.day``."""

    def __init__(self, last: Manifest, today: Manifest, served: ServedQueues) -> None:
        self._last = last
        self._today = today
        self._served = served
        self._renames = likely_renames(last, today)

    def findings(self) -> list[CompatFinding]:
        """Return all findings, failures first: by worker, then retired workers, then new ones."""
        found: list[CompatFinding] = []
        for name, old in self._last.workers.items():
            found += self._of_worker(name, old)
        found += self._retired()
        found += self._new()
        found += self._former_queues()
        return sorted(found, key=lambda finding: not finding.fails)

    def _of_worker(self, name: str, old: ReleasedWorker) -> Iterator[CompatFinding]:
        holder = self._today.find_worker(name)
        if holder is None:
            yield self._vanished(name, old)
        else:
            now, new = holder
            if now != name:
                yield from self._renamed(name, now, new)
            broken = list(self._jobs_of_last_release(now, old, new))
            yield from broken
            if not any(finding.fails for finding in broken):
                yield from self._jobs_for_last_release(now, old, new)
        yield from self._aliases(name, old)
        yield from self._queues(name, old, None if holder is None else holder[1])

    # --- names

    def _vanished(self, name: str, old: ReleasedWorker) -> CompatFinding:
        if name in self._today.retired:
            return findings.retired(name, old)
        heir = self._renames.get(name)
        return (
            findings.vanished(name, old, self._served.config_label)
            if heir is None
            else findings.rename_without_alias(name, old, heir, self._today.workers[heir])
        )

    def _renamed(self, name: str, now: str, new: ReleasedWorker) -> Iterator[CompatFinding]:
        if self._last.find_worker(now) is None:
            yield findings.renamed(name, now, new)

    def _aliases(self, name: str, old: ReleasedWorker) -> Iterator[CompatFinding]:
        for alias, since in old.aliases.items():
            if self._today.find_worker(alias) is None and alias not in self._today.retired:
                yield findings.alias_dropped(name, old, alias, since, maybe_in_flight=self._maybe_in_flight(since))

    def _retired(self) -> Iterator[CompatFinding]:
        for name, since in self._last.retired.items():
            if name not in self._today.retired and self._today.find_worker(name) is None:
                yield findings.retirement_dropped(
                    name, since, self._served.config_label, maybe_in_flight=self._maybe_in_flight(since)
                )

    def _new(self) -> Iterator[CompatFinding]:
        heirs = set(self._renames.values())
        for name, entry in self._today.workers.items():
            known = any(self._last.find_worker(one) is not None for one in (name, *entry.aliases))
            if not known and name not in heirs:
                yield findings.new_worker(name, entry)

    # --- arguments

    def _jobs_of_last_release(self, now: str, old: ReleasedWorker, new: ReleasedWorker) -> Iterator[CompatFinding]:
        """Yield findings of situations (1) and (2): today's code runs jobs of the last release."""
        if new.version < old.version:
            yield findings.version_lowered(now, old, new)
            return
        seen: set[tuple[str, str]] = set()
        for version in self._versions(old):
            before, after = old.handler_of_version(version), new.handler_of_version(version)
            if version in old.handlers and after[0] != before[0]:
                yield findings.handler_dropped(
                    now, old, new, version, maybe_in_flight=self._maybe_in_flight(old.former_versions[version])
                )
                continue
            # Jobs of another version that run in the same two methods have the same faults.
            if (before[0], after[0]) in seen and new.version == old.version:
                continue
            seen.add((before[0], after[0]))
            yield from self._incompatibilities(now, old, new, version)

    def _versions(self, old: ReleasedWorker) -> list[int]:
        """Return the versions whose jobs may be in flight, that of the last release first."""
        former = [
            one for one, since in old.former_versions.items() if one in old.handlers or self._maybe_in_flight(since)
        ]
        return list(dict.fromkeys((old.version, *sorted({*former, *old.handlers}, reverse=True))))

    def _incompatibilities(
        self, now: str, old: ReleasedWorker, new: ReleasedWorker, version: int
    ) -> Iterator[CompatFinding]:
        (_, before), (method, after) = old.handler_of_version(version), new.handler_of_version(version)
        found = find_incompatibilities(before, after)
        if found and method == "perform" and new.version > old.version:
            yield findings.no_handler(now, new, version, before, found)
            return
        for misfit in found:
            yield findings.incompatible_arguments(now, old, new, method, before, after, misfit)

    def _jobs_for_last_release(self, now: str, old: ReleasedWorker, new: ReleasedWorker) -> Iterator[CompatFinding]:
        """Yield findings of situation (3): processes of the last release run jobs of today's code, or leave them waiting."""
        if new.version > old.version:
            yield findings.deploy_processes_first(now, old, new)
            return
        yield from (findings.safe_change(now, new, text) for text in safe_changes(old.perform, new.perform))
        _, before = old.handler_of_version(new.version)
        if find_incompatibilities(new.perform, before):
            later = (
                ()
                if find_incompatibilities(_without_new_arguments(new.perform, before), before)
                else new.perform[len(before) :]
            )
            yield findings.push_later(now, new, later)

    # --- queues

    def _queues(self, name: str, old: ReleasedWorker, new: ReleasedWorker | None) -> Iterator[CompatFinding]:
        vanished = [shard for shard in old.shards if shard not in self._served.shards]
        for shard in vanished:
            yield findings.shard_vanished(name, old, shard, self._served.config_label)
        if len(vanished) == len(old.shards):
            return
        left = [] if new is None else [one for one in old.shards if one not in (*new.shards, *vanished)]
        if new is not None and left:
            yield findings.shard_changed(name, new, left)
        kept = [] if new is None else new.queues
        for queue in old.queues:
            if queue not in kept:
                served_by = self._served.source if serves(self._served.queues, queue) else ""
                yield findings.queue_changed(name, old, new, queue, self._served.config_label, served_by)

    def _former_queues(self) -> Iterator[CompatFinding]:
        """Yield findings of queues that got jobs of releases before the last one only."""
        used = set(self._today.locations)
        for (queue, shard), since in self._last.former_locations.items():
            gone = shard not in self._served.shards or (queue, shard) in used
            if not gone and self._maybe_in_flight(since) and not serves(self._served.queues, queue):
                yield findings.former_queue_unserved(queue, since, self._served.config_label)

    def _maybe_in_flight(self, since: date) -> bool:
        return in_flight(since, self._today.day)


def _without_new_arguments(new: Parameters, before: Parameters) -> Parameters:
    """Return the parameters of pushes that omit the optional arguments which are new since the last release."""
    surplus = new[len(before) :]
    return new[: len(before)] if all(one.optional or one.rest for one in surplus) else new


def count_findings(findings: Collection[CompatFinding]) -> Mapping[str, int]:
    """Return the number of failures, and of safe changes."""
    failing = sum(finding.fails for finding in findings)
    return {"findings": failing, "changes": len(findings) - failing}


_MIN_SIMILARITY = 0.6


def likely_renames(last: Manifest, today: Manifest) -> dict[str, str]:
    """Map each removed wire name to the most similar new worker: the same class, else equal parameters and a similar name."""
    vanished = {name: entry for name, entry in last.workers.items() if today.find_worker(name) is None}
    found: dict[str, str] = {}
    free = {
        name: entry for name, entry in today.workers.items() if last.find_worker(name) is None and not entry.aliases
    }
    for name, entry in vanished.items():
        if name in today.retired:
            continue
        likeness = {one: _similarity(name, entry, one, heir) for one, heir in free.items()}
        best = max(likeness, key=lambda one: likeness[one], default=None)
        if best is not None and likeness[best] >= _MIN_SIMILARITY:
            found[name] = best
            del free[best]
    return found


def _similarity(name: str, old: ReleasedWorker, heir: str, new: ReleasedWorker) -> float:
    if old.place == new.place:
        return 3.0
    if old.place.rpartition(".")[2] == new.place.rpartition(".")[2]:
        return 2.0
    like = SequenceMatcher(None, name, heir).ratio()
    same = [(one.name, one.type) for one in old.perform] == [(one.name, one.type) for one in new.perform]
    if not same:
        return 0.0
    # Equal parameters are evidence only if there are parameters; without them the names decide.
    return like + 0.5 * bool(old.perform)


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
    places = {name: entry.locations for name, entry in last.workers.items()}
    released = ReleasedQueues(places, tuple(last.former_locations))
    former = {place.queue for place in former_locations(project.router, declarations, released)}
    return former.union(*(queues_on(project.router, declarations, shard) for shard in project.settings.shards))
