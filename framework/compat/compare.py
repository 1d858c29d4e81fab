"""Which jobs in flight would a deploy break? Pure: the manifest of the last release and today's workers in, findings out.

Three situations have to be survived (GitLab): the last release pushes and today's code runs; jobs were pushed before and run
after; today's code pushes and processes of the last release run, as long as a deploy takes. A job of the first two is a name,
a version and a list of positions that some method of the last release took, and today's method has to take it too. One of
the third whose class or version a process does not know waits, its retries untouched, for a process that does.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from typing import NamedTuple

from framework.compat import advice
from framework.compat.advice import Finding
from framework.compat.arguments import harmless, misfits
from framework.compat.manifest import Entry, Manifest, Parameters, in_flight
from framework.compat.renames import renamed_to
from framework.route.lint import serves


class Fleet(NamedTuple):
    """What today's processes serve: the names in config/queues.yml, or without it their queues; and the shards."""

    served: Collection[str]
    shards: Collection[str]
    folder: str = "config"
    """How messages call the config folder."""


class Comparison:
    """``today`` against ``last``; ``today.day`` is the day."""

    def __init__(self, last: Manifest, today: Manifest, fleet: Fleet) -> None:
        self._last = last
        self._today = today
        self._fleet = fleet
        self._renames = renamed_to(last, today)

    def findings(self) -> list[Finding]:
        """Everything, failures first: by worker, then what was retired, then what is new."""
        found: list[Finding] = []
        for name, old in self._last.workers.items():
            found += self._of_worker(name, old)
        found += self._retired()
        found += self._new()
        return sorted(found, key=lambda finding: not finding.fails)

    def _of_worker(self, name: str, old: Entry) -> Iterator[Finding]:
        holder = self._today.holder(name)
        if holder is None:
            yield self._vanished(name, old)
        else:
            now, new = holder
            if now != name:
                yield from self._renamed(name, now, new)
            broken = list(self._arguments(now, old, new))
            yield from broken
            if not any(finding.fails for finding in broken):
                yield from self._towards_the_old(now, old, new)
        yield from self._aliases(name, old)
        yield from self._queues(name, old, None if holder is None else holder[1])

    # --- names

    def _vanished(self, name: str, old: Entry) -> Finding:
        if name in self._today.retired:
            return advice.retired(name, old)
        heir = self._renames.get(name)
        return (
            advice.vanished(name, old, self._fleet.folder)
            if heir is None
            else advice.rename_without_alias(name, old, heir, self._today.workers[heir])
        )

    def _renamed(self, name: str, now: str, new: Entry) -> Iterator[Finding]:
        if self._last.holder(now) is None:
            yield advice.renamed(name, now, new)

    def _aliases(self, name: str, old: Entry) -> Iterator[Finding]:
        for alias, since in old.aliases.items():
            if self._today.holder(alias) is None and alias not in self._today.retired:
                yield advice.alias_dropped(name, old, alias, since, fresh=self._fresh(since))

    def _retired(self) -> Iterator[Finding]:
        for name, since in self._last.retired.items():
            if name not in self._today.retired and self._today.holder(name) is None:
                yield advice.retirement_dropped(name, since, self._fleet.folder, fresh=self._fresh(since))

    def _new(self) -> Iterator[Finding]:
        heirs = set(self._renames.values())
        for name, entry in self._today.workers.items():
            known = any(self._last.holder(one) is not None for one in (name, *entry.aliases))
            if not known and name not in heirs:
                yield advice.new_worker(name, entry)

    # --- arguments

    def _arguments(self, now: str, old: Entry, new: Entry) -> Iterator[Finding]:
        """The first two situations: what the last release runs, today's code runs."""
        if new.version < old.version:
            yield advice.version_lowered(now, old, new)
            return
        seen: set[tuple[str, str]] = set()
        for version in self._versions(old):
            before, after = old.runner(version), new.runner(version)
            if version in old.handlers and after[0] != before[0]:
                yield advice.handler_dropped(now, old, new, version, fresh=self._fresh(old.former_versions[version]))
                continue
            # Jobs of another version that the same two methods run have the same faults.
            if (before[0], after[0]) in seen and new.version == old.version:
                continue
            seen.add((before[0], after[0]))
            yield from self._misfits(now, old, new, version)

    def _versions(self, old: Entry) -> list[int]:
        """The versions whose jobs may be in flight, the last release's own first."""
        former = [one for one, since in old.former_versions.items() if one in old.handlers or self._fresh(since)]
        return list(dict.fromkeys((old.version, *sorted({*former, *old.handlers}, reverse=True))))

    def _misfits(self, now: str, old: Entry, new: Entry, version: int) -> Iterator[Finding]:
        (_, before), (method, after) = old.runner(version), new.runner(version)
        found = misfits(before, after)
        if found and method == "perform" and new.version > old.version:
            yield advice.no_handler(now, new, version, before, found)
            return
        for misfit in found:
            yield advice.misfit(now, old, new, method, before, after, misfit)

    def _towards_the_old(self, now: str, old: Entry, new: Entry) -> Iterator[Finding]:
        """The third situation: what today's code pushes, processes of the last release run, or try again later."""
        if new.version > old.version:
            yield advice.processes_first(now, old, new)
            return
        yield from (advice.change(now, new, text) for text in harmless(old.perform, new.perform))
        _, before = old.runner(new.version)
        if misfits(new.perform, before):
            later = () if misfits(_as_before(new.perform, before), before) else new.perform[len(before) :]
            yield advice.push_later(now, new, later)

    # --- queues

    def _queues(self, name: str, old: Entry, new: Entry | None) -> Iterator[Finding]:
        if old.shard not in self._fleet.shards:
            yield advice.shard_vanished(name, old, self._fleet.folder)
            return
        if new is not None and new.shard != old.shard:
            yield advice.shard_changed(name, old, new)
        kept = [] if new is None else new.queues
        for queue in old.queues:
            if queue not in kept:
                yield advice.queue_changed(
                    name, old, new, queue, self._fleet.folder, served=serves(self._fleet.served, queue)
                )

    def _fresh(self, since: date) -> bool:
        return in_flight(since, self._today.day)


def _as_before(new: Parameters, before: Parameters) -> Parameters:
    """What today's pushes carry as long as nobody gives the optional arguments that the last release does not have."""
    surplus = new[len(before) :]
    return new[: len(before)] if all(one.optional or one.rest for one in surplus) else new


def counted(findings: Collection[Finding]) -> Mapping[str, int]:
    """How many fail, and how many are only worth knowing."""
    failing = sum(finding.fails for finding in findings)
    return {"findings": failing, "changes": len(findings) - failing}
