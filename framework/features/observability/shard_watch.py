"""Read all shards at the same time and at most once a second, however many programs ask; a silent shard delays none of them."""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.admin.figures import Figure
from framework.declare.declaration import Declaration
from framework.errors import FrameworkError, ShardUnavailableError
from framework.features.observability.fleet import FleetReader, FleetReading
from framework.features.observability.redis_figures import state_figures
from framework.features.observability.settings import FleetSettings
from framework.features.observability.slots_needed import LoadSample, QueueLoad, ShardLoad, group_slots
from framework.route.router import Router
from framework.shard.shard import Shard
from framework.supervised_threads import SupervisedThread
from framework.telemetry.logs import LogRateLimit
from framework.types import Urgency

READ_TIMEOUT_S = 1.0
"""How long one command to a shard may take."""
ANSWER_WITHIN_S = 0.9
"""How long a scrape waits for a shard."""
_FRESH_S = 1.0
"""For how long an answer is given again."""
_LOG_INTERVAL_S = 60.0
_TLS_S = 60.0
"""For how long a connection with TLS is used: a renewed certificate shows at the next one."""


class RoutedClass(NamedTuple):
    """One loaded class with the queue of a shard to which its jobs go."""

    name: str
    queue: str
    urgency: Urgency


class RoutedClasses:
    """The loaded classes whose jobs go to one shard."""

    def __init__(self, classes: Sequence[RoutedClass]) -> None:
        self._classes = classes
        order: Sequence[Urgency] = ("throttled", "low", "high")
        # The queue keeps the target of its most urgent class.
        self.urgencies: Mapping[str, Urgency] = {
            one.queue: one.urgency for one in sorted(classes, key=lambda each: order.index(each.urgency))
        }

    def seconds(self, reading: FleetReading) -> dict[str, float]:
        """Return the mean duration of the runs of each queue in the last minutes."""
        counts, seconds = dict[str, int](), dict[str, float]()
        for one in self._classes:
            runs = reading.classes.get(one.name)
            if runs is not None:
                counts[one.queue] = counts.get(one.queue, 0) + runs.ended
                seconds[one.queue] = seconds.get(one.queue, 0.0) + runs.seconds
        return {queue: seconds[queue] / count for queue, count in counts.items()}

    def limits(self, reading: FleetReading) -> dict[str, int]:
        """Return how many jobs of a queue may run at a time, for the queues whose classes all have a limit in force."""
        found = dict[str, int]()
        unlimited = {one.queue for one in self._classes if one.name not in reading.limits}
        for one in self._classes:
            if one.queue not in unlimited:
                found[one.queue] = found.get(one.queue, 0) + reading.limits[one.name]
        return found


def classes_by_shard(router: Router, declarations: Iterable[Declaration]) -> dict[str, RoutedClasses]:
    """Return the classes whose jobs go to each shard."""
    found: dict[str, list[RoutedClass]] = {}
    for one in declarations:
        route = router.route(one)
        for shard in router.shards_of(one):
            found.setdefault(shard, []).append(RoutedClass(one.wire_name, route.queue, one.urgency))
    return {shard: RoutedClasses(classes) for shard, classes in found.items()}


class NeededSlots:
    """The slots that the groups of queues of one shard need, by its last readings. Use it from one thread at a time."""

    def __init__(self, classes: RoutedClasses, groups: Mapping[str, Sequence[str]]) -> None:
        self._classes = classes
        self._groups = groups
        self._load = ShardLoad()

    def note(self, reading: FleetReading) -> Mapping[str, int]:
        """Take a reading, and return the slots of each group; a queue of no group is a group of its own."""
        runs = {identity: load.runs for identity, load in reading.processes.items()}
        busy = Counter[str]()
        for load in reading.processes.values():
            busy.update(load.running)
        sample = LoadSample(reading.now, reading.sizes, reading.paused, runs, busy, self._classes.seconds(reading))
        loads: dict[str, QueueLoad] = self._load.note(sample)
        # A queue without any job yet has its series too: an autoscaler asks for it.
        known = {queue: QueueLoad(0.0, 0.0, 0) for queue in self._classes.urgencies}
        return group_slots(known | loads, self._classes.urgencies, self._groups, self._classes.limits(reading))


class ShardAnswer(NamedTuple):
    """The figures of one shard, and the needed slots by group of queues; or why the shard has not answered."""

    figures: Sequence[Figure]
    slots: Mapping[str, int]
    error: ShardUnavailableError | None = None


class Watch(ABC):
    """Read something in a thread of its own. A read that hangs is waited for, and no second one begins."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._ended: threading.Event | None = None
        self._answer = ShardAnswer((), {})

    @abstractmethod
    def read(self) -> ShardAnswer:
        """Return the answer, also that about an error."""

    @abstractmethod
    def late(self) -> ShardAnswer:
        """Return the answer while the read goes on."""

    def begin(self) -> None:
        """Begin to read, unless a read has not ended yet."""
        with self._lock:
            if self._ended is None:
                self._ended = threading.Event()
                SupervisedThread(f"figures {self.name}", self._run, self._ended).start()

    def answer_by(self, moment: float) -> ShardAnswer:
        """Return the answer of the read, at ``moment`` (monotonic seconds) at the latest."""
        ended = self._ended
        if ended is None or ended.wait(max(0.0, moment - time.monotonic())):
            return self._answer
        return self.late()

    def _run(self, ended: threading.Event) -> None:
        answer = self.late()
        try:
            answer = self.read()
        finally:
            self._answer = answer
            with self._lock:
                self._ended = None
            ended.set()


class HostWatch(Watch):
    """Read the figures of this host: files, and the payload store, which may be far away."""

    def __init__(self, reader: FleetReader) -> None:
        super().__init__("of the host")
        self._reader = reader

    def read(self) -> ShardAnswer:
        return ShardAnswer(list(self._reader.of_host()), {})

    def late(self) -> ShardAnswer:
        return ShardAnswer((), {})


class ShardWatch(Watch):
    """Read one shard."""

    def __init__(self, shard: Shard, reader: FleetReader, classes: RoutedClasses, settings: FleetSettings) -> None:
        super().__init__(shard.name)
        self._shard = shard
        self._client = shard.open_client("figures", read_timeout_s=READ_TIMEOUT_S)
        self._reader = reader
        self._classes = classes
        self._needed = NeededSlots(classes, settings.queue_groups)
        self._opened_at = time.monotonic()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def read(self) -> ShardAnswer:
        try:
            return self.answer()
        except (RedisError, OSError, FrameworkError) as error:
            found = self.away(error)
            if found.error is not None:
                self._log_limit.warning(
                    self.name,
                    "the shard does not answer: it has no figures and application_worker_up is 0. Check its Redis and the network.",
                    "exporter.shard_away",
                    shard=self.name,
                    error=error,
                )
            return found

    def answer(self) -> ShardAnswer:
        """Return what the shard says. Raises redis errors."""
        reading = self._reader.read(self.name, self._client)
        if reading.certificate_end is not None and time.monotonic() - self._opened_at > _TLS_S:
            self._client.connection_pool.disconnect()
            self._opened_at = time.monotonic()
        return self._answer_of(reading)

    def late(self) -> ShardAnswer:
        return self.away(RedisTimeoutError(f"no answer within {ANSWER_WITHIN_S:g} s"))

    def away(self, error: Exception) -> ShardAnswer:
        """Return the answer about a shard that has not answered."""
        found = error if isinstance(error, RedisError | OSError | ShardUnavailableError) else RedisError(str(error))
        return ShardAnswer(list(_away_figures(self.name)), {}, self._shard.unavailable(found))

    def close(self) -> None:
        self._client.close()

    def _answer_of(self, reading: FleetReading) -> ShardAnswer:
        up = Figure("application_worker_up", {"shard": reading.shard}, 1)
        slots = self._needed.note(reading)
        needed = [
            Figure("application_worker_slots_needed", {"shard": reading.shard, "queue_group": name}, count)
            for name, count in slots.items()
        ]
        return ShardAnswer([up, *reading.figures, *needed], slots)


def _away_figures(shard: str) -> Iterator[Figure]:
    yield Figure("application_worker_up", {"shard": shard}, 0)
    for one in state_figures("open"):
        yield Figure(one.name, {**one.labels, "shard": shard}, one.value)


class Fleet:
    """The figures of some shards. Safe from any thread: the callers of one second share one read."""

    def __init__(
        self,
        settings: FleetSettings,
        shards: Sequence[Shard],
        reader: FleetReader,
        classes: Mapping[str, RoutedClasses],
        *,
        of_host: bool = True,
        watch: type[ShardWatch] = ShardWatch,
    ) -> None:
        self._host = HostWatch(reader) if of_host else None
        self._watches = [watch(shard, reader, classes.get(shard.name, RoutedClasses(())), settings) for shard in shards]
        self._lock = threading.Lock()
        self._read_at = -_FRESH_S
        self._answers: Mapping[str, ShardAnswer] = {}
        self._of_host: Sequence[Figure] = ()

    def close(self) -> None:
        """Close the connections."""
        for watch in self._watches:
            watch.close()

    def figures(self) -> list[Figure]:
        """Return the figures of the shards and of the host: within a second, whatever the shards do."""
        found = [one for answer in self.answers().values() for one in answer.figures]
        return [*found, *self._of_host]

    def answers(self) -> Mapping[str, ShardAnswer]:
        """Return the answer of each shard, by name."""
        with self._lock:
            if time.monotonic() - self._read_at >= _FRESH_S:
                watches = [*self._watches, *([self._host] if self._host else [])]
                for watch in watches:
                    watch.begin()
                moment = time.monotonic() + ANSWER_WITHIN_S
                answers = {watch.name: watch.answer_by(moment) for watch in watches}
                self._of_host = answers.pop(self._host.name).figures if self._host else ()
                self._answers = answers
                self._read_at = time.monotonic()
            return self._answers
