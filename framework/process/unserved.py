"""Find queues of loaded classes that no running process serves, and warn of them: at the boot of a producer, and in processes.

``UnservedWatch`` decides when a process checks and warns; ``UnservedQueues`` finds the queues and writes the lines.
"""

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import redis
from redis.exceptions import RedisError

from framework.command_line import command, remedy_command, worker_command
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.process.own_queues import former_queues
from framework.process.record import unserved_queues
from framework.process_clock import process_clock
from framework.route.router import Router
from framework.route.rule_checks import serves
from framework.route.topology import QueueLocation, locations_of
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.telemetry import logs
from framework.text import join_names
from framework.timings import STANDARD, Timings
from framework.wire import keys

REPEAT_S = 3600.0
"""The period at which a warning that still holds is repeated."""

_PROCESS_DEADLINE_S = 2.0
"""The deadline of each read in a worker process."""

_PRODUCER_DEADLINE_S = 1.0
"""The deadline of each read at a producer's boot, for which the application waits."""

_MAX_NAMES = 5
_MOST_FIELDS = 50
_MOST_OPTIONS = 20


# Two checks, because many processes may start at the same time.
class UnservedWatch:
    """Warn of a queue that two checks in a row found unserved, and report when it is served. Use it from one thread.

    A process that serves all queues itself never looks.
    """

    def __init__(
        self,
        queues: "UnservedQueues",
        *,
        in_group: bool = False,
        timings: Timings = STANDARD,
    ) -> None:
        self._queues = queues
        self._timings = timings
        self._first_s = timings.first_unserved_check_in_group_s if in_group else timings.first_unserved_check_s
        self._checks = -1
        self._previous: frozenset[QueueLocation] = frozenset()
        self._warned: frozenset[QueueLocation] = frozenset()
        """The queues with a warning that still holds."""
        self._warned_at = -math.inf

    def step(self) -> float:
        """Check the queues, except in the first call, and return the seconds until the next call."""
        self._checks += 1
        if not self._queues.places:
            return self._timings.served_check_period_s
        if self._checks == 0:
            return self._first_s
        missing = self._queues.find()
        self._notify(missing & self._previous, missing)
        self._previous = missing
        if not missing:
            return self._timings.served_check_period_s
        return self._first_s if self._checks == 1 else self._timings.unserved_check_period_s

    def _notify(self, confirmed: frozenset[QueueLocation], missing: frozenset[QueueLocation]) -> None:
        served = self._warned - missing
        if served:
            self._queues.log_served(served)
        self._warned -= served
        now = process_clock.monotonic()
        if confirmed - self._warned or (confirmed and now - self._warned_at >= REPEAT_S):
            self._queues.log_unserved(confirmed)
            self._warned, self._warned_at = self._warned | confirmed, now


class UnservedQueues:
    """Find and report the unserved queues of the loaded classes, whose locations ``router`` knows.

    Queues of earlier releases count while they have jobs. A class that ``foreign_classes`` names is left out, because another
    application runs it.
    """

    def __init__(
        self,
        settings: CoreSettings,
        router: Router,
        shards: Mapping[str, Shard],
        role: str,
        deadline_s: float,
        *,
        served: Collection[QueueLocation] = (),
    ) -> None:
        """Look for all queues but those that are ``served`` for certain, by clients of this role. Opens no socket."""
        self._settings = settings
        classes = [cast("Declaration", worker.declaration()) for worker in registry.workers()]
        own = [one for one in classes if not any(fnmatchcase(one.wire_name, text) for text in settings.foreign_classes)]
        self._targets = locations_of(router, own)
        self._former = former_queues(settings, router, own)
        self.places = frozenset((*self._targets, *self._former)).difference(served)
        """The queues that receive jobs of these classes, or did in an earlier release, and that have to be looked for."""
        self._clients = {
            name: shards[name].open_client(role, read_timeout_s=deadline_s)
            for name in {place.shard for place in self.places}
        }

    def find(self) -> frozenset[QueueLocation]:
        """Return the queues that no running process serves; none of a shard that does not answer.

        All connections are closed afterwards.
        """
        found: set[QueueLocation] = set()
        for shard, client in sorted(self._clients.items()):
            names = {place.queue for place in self.places if place.shard == shard}
            try:
                unserved = {QueueLocation(name, shard) for name in unserved_queues(client, names)}
                found.update(unserved - _empty(client, unserved & self._former.keys()))
            # Nothing is known; pushes and the other threads report a shard that does not answer.
            except (RedisError, OSError):
                pass
            finally:
                client.connection_pool.disconnect()
        return frozenset(found)

    def log_unserved(self, places: Iterable[QueueLocation]) -> None:
        """Warn once per shard of its unserved queues, with their classes and the command that serves them."""
        all_places = frozenset(places)
        self._log_former(all_places & self._former.keys())
        for shard, queues in _by_shard(all_places & self._targets.keys()).items():
            users = {one.wire_name: one for queue in queues for one in self._targets[QueueLocation(queue, shard)]}
            names = sorted(users)
            remedy = self._command(shard, queues, users.values())
            many = f"; `{command('route --lint --live')}` lists them all" if len(queues) > _MOST_OPTIONS else ""
            logs.logger().warning(
                f"no running process serves the {_counted('queue', queues)} of the shard {shard}, where jobs of "
                f"{join_names(names, max_names=_MAX_NAMES)} wait: start a process with `{remedy}`{self._remedy(queues)}{many}",
                event_name="boot.unserved",
                shard=shard,
                queues=queues[:_MOST_FIELDS],
                classes=names[:_MOST_FIELDS],
                command=remedy,
            )

    def _log_former(self, places: Iterable[QueueLocation]) -> None:
        for shard, queues in _by_shard(places).items():
            users = {one.wire_name: one for queue in queues for one in self._former[QueueLocation(queue, shard)]}
            remedy = self._command(shard, queues, users.values())
            logs.logger().warning(
                f"jobs of an earlier release wait in the {_counted('queue', queues)} of the shard {shard}, and no running process "
                f"serves {'it' if len(queues) == 1 else 'them'}: start a process with `{remedy}`, or move the jobs with "
                f"`{remedy_command('migrate-jobs', 'queued', '--follow-rules')}`",
                event_name="boot.unserved",
                shard=shard,
                queues=queues[:_MOST_FIELDS],
                classes=sorted(users)[:_MOST_FIELDS],
                command=remedy,
            )

    def log_served(self, places: Iterable[QueueLocation]) -> None:
        """Report that a process serves these queues now, after a warning."""
        for shard, queues in _by_shard(places).items():
            logs.logger().info(
                f"a process now serves the {_counted('queue', queues)} of the shard {shard}",
                event_name="boot.served",
                shard=shard,
                queues=queues[:_MOST_FIELDS],
            )

    def _command(self, shard: str, queues: list[str], users: Iterable[Declaration]) -> str:
        words = [] if shard == "main" else ["--shard", shard]
        if not self._served_by_default(queues):
            words += [part for queue in queues[:_MOST_OPTIONS] for part in ("-q", queue)]
        return worker_command(*words, modules=self._modules(users))

    def _modules(self, users: Iterable[Declaration]) -> list[str]:
        """Return the modules to name with ``-r`` for these classes, without those of the setting ``workers_module``."""
        loaded = registry.loaded()
        found: set[str] = set()
        for one in users:
            module = _importable(one.module)
            holders = [name for name in loaded if _within(module, name)]
            found.add(min(holders, default=module, key=len))
        return sorted(name for name in found if not any(_within(name, own) for own in self._settings.workers_module))

    def _served_by_default(self, queues: Iterable[str]) -> bool:
        """Return whether a process without ``-q`` serves these queues."""
        names = [line.name for line in self._settings.queues]
        return not names or all(serves(names, queue) for queue in queues)

    def _remedy(self, queues: Iterable[str]) -> str:
        if self._served_by_default(queues):
            return ""
        return f", or update {self._settings.config_file_label('queues.yml')} with `{command('generate-queues')}`"


def open_watch(
    settings: CoreSettings,
    router: Router,
    shards: Mapping[str, Shard],
    served: Collection[QueueLocation],
    timings: Timings,
    *,
    in_group: bool,
) -> UnservedWatch:
    """Return the watch for queues that this process does not serve. Opens no socket."""
    queues = UnservedQueues(settings, router, shards, "unserved", _PROCESS_DEADLINE_S, served=served)
    return UnservedWatch(queues, in_group=in_group, timings=timings)


def warn_unserved(settings: CoreSettings, router: Router, shards: Mapping[str, Shard]) -> None:
    """Warn once of the queues of loaded classes that no process serves; skip a shard that does not answer."""
    unserved = UnservedQueues(settings, router, shards, "boot", _PRODUCER_DEADLINE_S)
    unserved.log_unserved(unserved.find())


def _empty(client: "redis.Redis", places: Iterable[QueueLocation]) -> set[QueueLocation]:
    """Return those of the queues that have no jobs. Raises redis errors."""
    return {place for place in places if not client.llen(keys.queue(place.queue))}


def _by_shard(places: Iterable[QueueLocation]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for place in sorted(places):
        found.setdefault(place.shard, []).append(place.queue)
    return dict(sorted(found.items()))


def _counted(noun: str, names: list[str]) -> str:
    return f"{noun if len(names) == 1 else f'{noun}s'} {join_names(names, max_names=_MAX_NAMES)}"


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _importable(module: str) -> str:
    """Return the name under which a process can import a module; for a program, the name of its file."""
    if module != "__main__":
        return module
    file: str | None = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else "MODULE"
