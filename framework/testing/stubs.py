"""Let a test decide what policies see: flags, limits, the health of databases, and replicas.

Without a word of the test no flag is set, no slot is taken by other processes, every database is healthy, and jobs read from the
primary.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from framework.all_settings import Settings
from framework.application_worker import ApplicationWorker
from framework.declare.declaration import Declaration
from framework.errors import ModeError
from framework.features.concurrency.limits import QUEUE_PREFIX
from framework.features.consistency.databases import (
    ConsistencyLevels,
    Database,
    Databases,
    DatabaseServer,
    weakest_level,
)
from framework.features.flags.flag import Flag, FlagSource
from framework.features.health.checks import HealthChecker
from framework.features.health.indicator import Normal, Signal, Stop
from framework.features.leases.keys import EXCLUSIVE_LEASES, exclusive_lease
from framework.features.leases.store import OBTAIN
from framework.features.limiters.limiter import Limiter, LimiterRule, Take
from framework.features.limiters.store import LimiterStore
from framework.settings.model import DatabaseSettings
from framework.shard.shard import Shard
from framework.testing.fake_clock import FakeClock
from framework.text import did_you_mean, join_names
from framework.types import DataConsistency
from framework.wire import keys
from framework.wire.resources import slot_member

ReplicaState: TypeAlias = Literal["caught_up", "behind"]
"""Whether the replica of a database shows what a push saw."""


class StubFlags(FlagSource):
    """The feature flags of a test. A flag that is not set leaves the decision to the code that asks."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._flags: dict[str, Flag] = {}

    def set(self, name: str, percentage: float = 100, *, reason: str = "") -> None:
        """Set a flag; 0 turns it off."""
        self.put(Flag(name, percentage, reason, "test"))

    def put(self, flag: Flag) -> None:
        """Set a flag with all of its fields."""
        self._flags[flag.name] = flag

    def clear(self, name: str | None = None) -> None:
        """Clear one flag, or all."""
        for one in [name] if name is not None else list(self._flags):
            self._flags.pop(one, None)

    def find(self, name: str) -> Flag | None:
        flag = self._flags.get(name)
        expired = flag is not None and flag.expires_at is not None and flag.expires_at <= self._clock()
        return None if expired else flag

    def names(self) -> frozenset[str]:
        return frozenset(self._flags)

    def read(self) -> bool:
        """See ``FlagSource``: the flags are current without a read."""
        return False


_ELSEWHERE = "elsewhere"
"""The identity of the other processes in the members that hold slots."""
_FOR_EVER = 1e12


class OtherSlots:
    """The slots that other processes hold, by the wire name of a class, or ``queue/NAME``: written on every shard of the fake."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = shards
        self._taken: dict[str, int] = {}

    def occupy(self, worker: type[ApplicationWorker], slots: int) -> None:
        """Let jobs of other processes hold so many slots of a class, so that its jobs may have to wait."""
        self._occupy(worker.declaration().wire_name, slots)

    def occupy_queue(self, queue: str, slots: int) -> None:
        """Let jobs of other processes hold so many slots of a queue that the setting ``limits`` names."""
        self._occupy(f"{QUEUE_PREFIX}{queue}", slots)

    def clear(self) -> None:
        """Free all of these slots. The next ``drain`` runs the jobs that were held."""
        for name in list(self._taken):
            self._occupy(name, 0)

    def restore(self) -> None:
        """Write the slots again: the databases were emptied."""
        for name, slots in self._taken.items():
            self._occupy(name, slots)

    def _occupy(self, name: str, slots: int) -> None:
        before, self._taken[name] = self._taken.get(name, 0), slots
        for shard in self._shards.values():
            running: Any = f"{keys.limit(name)}:running"
            client: Any = shard.client
            if before:
                client.zrem(running, *(slot_member(_ELSEWHERE, str(number)) for number in range(before)))
            if slots:
                client.zadd(running, {slot_member(_ELSEWHERE, str(number)): _FOR_EVER for number in range(slots)})


class OtherLeases:
    """The leases that other holders have: written on the shards of the fake."""

    def __init__(self, shards: Mapping[str, Shard], fleet_shard: str) -> None:
        self._shards = shards
        self._fleet_shard = fleet_shard
        self._taken: dict[tuple[str, str], float] = {}

    def take(self, name: str, *, timeout_s: float = 3_600.0, shard: str | None = None) -> None:
        """Let another holder have the lease from now on: its holder in the test has lost it."""
        shard = shard or self._fleet_shard
        self._taken[name, shard] = timeout_s
        on, place = self._shards[shard], exclusive_lease(name)
        client: Any = on.client
        client.delete(place)
        arguments = [name, _ELSEWHERE, "another holder", round(timeout_s * 1_000)]
        OBTAIN(client, [place, EXCLUSIVE_LEASES], arguments)

    def clear(self) -> None:
        """Let every lease be free."""
        self._taken.clear()
        for shard in self._shards.values():
            client: Any = shard.client
            found = list(client.scan_iter(match=exclusive_lease("*")))
            client.delete(EXCLUSIVE_LEASES, *found)

    def restore(self) -> None:
        """Write the leases again: the databases were emptied."""
        for (name, shard), timeout_s in self._taken.items():
            self.take(name, timeout_s=timeout_s, shard=shard)


class StubHealth(HealthChecker):
    """The health of databases, as every indicator of a class judges it."""

    def __init__(self) -> None:
        # Not the constructor of the base: there is nothing to check, and no thread.
        self._stopped: dict[str, str] = {}

    def stop(self, database: str = "main", reason: str = "a test says so") -> None:
        """Let every indicator stop the jobs that depend on this database."""
        self._stopped[database] = reason

    def clear(self) -> None:
        """Let every database be healthy again."""
        self._stopped.clear()

    def signals(self, names: Sequence[str], database: str, tables: tuple[str, ...]) -> list[tuple[str, Signal]]:
        del tables
        reason = self._stopped.get(database)
        signal = Normal("a test says nothing else") if reason is None else Stop(reason)
        return [(name, signal) for name in names]

    def known_until(self, names: Sequence[str], database: str, tables: tuple[str, ...]) -> float:
        """Return 0.0: a test may change the state at any time."""
        del names, database, tables
        return 0.0


class _StubServer(DatabaseServer):
    """A server whose position the test decides. Its queries go to the database's primary."""

    def __init__(self, name: str, url: str, positions: "itertools.count[int]", *, is_replica: bool) -> None:
        super().__init__(name, url, is_replica=is_replica)
        self._positions = positions
        self.caught_up = True

    def position(self) -> int:
        """Return a position after that of every earlier push."""
        return next(self._positions)

    def has_reached(self, position: int) -> bool:
        """Return the decision of the test."""
        del position
        return self.caught_up


class StubReplicas(Databases):
    """The replicas of configured databases. Reads of a replica go to the primary's server: a test has one database."""

    def __init__(self, settings: Mapping[str, DatabaseSettings]) -> None:
        self._settings = settings
        self._positions = itertools.count(1)
        self._all: dict[str, Database] = {}

    def set(self, database: str, state: ReplicaState) -> None:
        """Give the database a replica that has caught up with every push, or one that stays behind.

        Raises:
            ModeError: the setting ``databases`` does not have it.
        """
        if database not in self._settings:
            known = join_names(self._settings) if self._settings else "none"
            hint = did_you_mean(database, self._settings)
            raise ModeError(f"there is no database {database!r}{hint}; the setting databases has {known}.")
        url = self._settings[database].url
        primary = _StubServer(database, url, self._positions, is_replica=False)
        replica = _StubServer(f"{database} replica 1", url, self._positions, is_replica=True)
        replica.caught_up = state == "caught_up"
        self._all[database] = Database(database, primary, (replica,))

    def clear(self) -> None:
        """Let jobs read from the primary again."""
        self._all = {}

    def __getitem__(self, name: str) -> Database:
        return self._all[name]

    def levels(self, declaration: Declaration) -> ConsistencyLevels:
        usual: DataConsistency = declaration.facts["data_consistency"]
        overrides: ConsistencyLevels = declaration.facts["data_consistency_overrides"] or {}
        found: dict[str, DataConsistency] = {name: overrides.get(name, usual) for name in self._all}
        return found if weakest_level(found) != "always" else {}


class Stubs:
    """The decisions of a test for the policies."""

    def __init__(self, settings: Settings, clock: FakeClock, shards: Mapping[str, Shard]) -> None:
        self.flags = StubFlags(clock)
        self.limits = OtherSlots(shards)
        self.limiters = StubLimiters()
        self.leases = OtherLeases(shards, settings.fleet_shard)
        self.health = StubHealth()
        self.replicas = StubReplicas(settings.databases)
        self.interrupt_every: int | None = None
        """After so many items an iterating job is interrupted; ``None``: never."""


class StubLimiters(LimiterStore):
    """The rate limiters of a test. They count nothing, and no call waits."""

    def __init__(self) -> None:
        # Not the constructor of the base: there is no shard.
        self._exhausted: set[tuple[str, str | None]] = set()
        self.taken: list[tuple[str, str, float]] = []
        """The admitted calls: the name of the limiter, the key (empty without one), the amount."""

    def exhaust(self, limiter: Limiter, key: str | int | None = None) -> None:
        """Let every later call of the limiter, or of one of its keys, be over the limit."""
        self._exhausted.add((limiter.name, None if key is None else str(key)))

    def clear(self) -> None:
        """Admit every call again, and forget those that were made."""
        self._exhausted.clear()
        self.taken.clear()

    def take(
        self, rule: LimiterRule, key: str, amount: float, token: str, *, waited: bool, left_s: float = 0.0
    ) -> Take:
        del token, waited, left_s
        if not self._exhausted.isdisjoint({(rule.name, None), (rule.name, key)}):
            return Take(False, None, rule.limit, rule.limit)
        self.taken.append((rule.name, key, amount))
        return Take(True, None, 0.0, rule.limit)

    def give_back(self, rule: LimiterRule, key: str, token: str) -> None: ...

    def correct(self, rule: LimiterRule, key: str, amount: float, token: str) -> None: ...

    def used(self, rule: LimiterRule, key: str) -> float:
        return 0.0 if self._exhausted.isdisjoint({(rule.name, None), (rule.name, key)}) else rule.limit

    def resize(self, rule: LimiterRule, limit: float | None, duration_s: float | None) -> None: ...

    def reset(self, rule: LimiterRule, key: str | None) -> None:
        """See ``LimiterStore``: forget that a test has exhausted it."""
        self._exhausted = {one for one in self._exhausted if one[0] != rule.name or (key is not None and one[1] != key)}
