"""Define faults of a master with a replica and sentinels: each ends with the other one as master, followed by the old
one.
"""

import signal
import time

from redis.exceptions import RedisError

from tests.chaos.rounds.faults import REDIS, Fault, Injection, Steps, fault, lasting
from tests.chaos.rounds.history import Moment
from tests.chaos.rounds.replicated import NAME, Node, ReplicatedStore
from tests.chaos.rounds.round_shard import RoundShard

_AGAIN_S = 0.5


class _Failover:
    """One failover: the old master, the new one, and the writes that only the old one received."""

    def __init__(self, round_shard: RoundShard) -> None:
        store = round_shard.store
        assert isinstance(store, ReplicatedStore), "this round has one server"  # noqa: S101
        self.store = store
        self.old, self.new = store.master, store.replica
        # The replica's first: a push may reach it between the two readings.
        self._new_since, self._old_since = self.new.files.now, self.old.files.now
        self._new_until: Moment | None = None
        self._old_until: Moment | None = None
        self.old_answers = False
        """Whether the old master can be asked: a frozen one would stop the round."""

    def promoted(self) -> Steps:
        """Wait until every sentinel names the new master."""
        self._look()
        while not self.store.all_name(self.new):
            yield
            self._look()

    def demoted(self) -> Steps:
        """Wait until the old master follows the new one."""
        self.old_answers = True
        self._look()
        while not self.old.follows(self.new.port):
            yield
            self._look()

    def _look(self) -> None:
        """Note the lengths of the files when the two servers have changed their roles."""
        if self._new_until is None and self.new.role() == "master":
            # No process follows the new master so soon: its file has only what the old one had sent.
            self._new_until = self.new.files.now
        if self._old_until is None and self.old_answers and self.old.role() == "slave":
            self._old_until = self.old.files.now

    def forget(self, injection: Injection, since: float, until: float) -> None:
        """Record the answers of the old master between the two times that the new one does not know."""
        injection.forgets = (since, until)
        old, new = self.old.files, self.new.files
        injection.forgotten = old.pushed_since(self._old_since) - new.pushed_since(self._new_since)
        answered = old.ends_between(self._old_since, self._old_until or old.now)
        received = new.ends_between(self._new_since, self._new_until or new.now)
        injection.forgotten_ends = frozenset(end.serial for end in answered - received)

    def rejoin(self, injection: Injection) -> Steps:
        """Start the killed old master as a replica; where each write needs one, the fault ends only then."""
        yield from self.promoted()
        injection.until = time.monotonic()
        self.old.start(f"replicaof 127.0.0.1 {self.new.port}")
        yield from self.demoted()
        if self.store.witnesses:
            injection.until = time.monotonic()


@fault("master killed", REDIS, to_the_end=True)
def master_killed(round_shard: RoundShard, injection: Injection) -> Steps:
    """Kill the master with -9."""
    change = _Failover(round_shard)
    injection.at = time.monotonic()
    change.old.stop()
    yield from change.promoted()
    change.forget(injection, injection.at - _REACHES_S, injection.at)
    yield from change.rejoin(injection)


_REACHES_S = 0.05
"""A connected replica answers at most this much later than the client, on a loaded machine."""


@fault("master killed, lagging", REDIS, to_the_end=True)
def replica_behind(round_shard: RoundShard, injection: Injection) -> Steps:
    """Disconnect the replica some time before the master is killed."""
    change = _Failover(round_shard)
    cut_at = time.monotonic()
    change.new.send(signal.SIGSTOP)
    try:
        change.old.client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        yield from lasting(round_shard.rng.uniform(0.2, 0.8))
        injection.at = time.monotonic()
        change.old.stop()
    finally:
        change.new.send(signal.SIGCONT)
    yield from change.promoted()
    change.forget(injection, cut_at - _REACHES_S, injection.at)
    yield from change.rejoin(injection)


@fault("SENTINEL FAILOVER", REDIS, to_the_end=True)
def ordered(round_shard: RoundShard, injection: Injection) -> Steps:
    """Order a failover: the old master continues to answer until a sentinel demotes it."""
    change = _Failover(round_shard)
    change.old_answers = True
    while not _order(change.store.sentinels[0]):
        yield from lasting(_AGAIN_S)
    injection.at = time.monotonic()
    yield from change.promoted()
    yield from change.demoted()
    injection.until = time.monotonic()
    change.forget(injection, injection.at - _REACHES_S, injection.until)


@fault("master frozen", REDIS, to_the_end=True)
def master_frozen(round_shard: RoundShard, injection: Injection) -> Steps:
    """Freeze the master until another has replaced it; it wakes and believes that it is the master."""
    change = _Failover(round_shard)
    injection.at = time.monotonic()
    change.old.send(signal.SIGSTOP)
    try:
        yield from change.promoted()
        yield from lasting(_AGAIN_S)
        injection.until = time.monotonic()
    finally:
        change.old.send(signal.SIGCONT)
    yield from change.demoted()
    change.forget(injection, injection.at - _REACHES_S, time.monotonic())
    if change.store.witnesses:
        injection.until = time.monotonic()


def _order(sentinel: Node) -> bool:
    try:
        sentinel.client.execute_command("SENTINEL", "FAILOVER", NAME)
    except RedisError:  # the replica is not fit in its view, or another failover is under way
        return False
    return True


FAILOVER_FAULTS: tuple[Fault, ...] = (master_killed, replica_behind, ordered, master_frozen)
