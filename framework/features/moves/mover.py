"""Move the waiting jobs of one move from its source to its target, page by page, while producers and processes work.

Every job takes three steps, each of one script. No job is ever in no key, and no job is in two places from which it could start:

1. It leaves its place for a list of jobs that leave, on the same shard (``migrate.lua``, ``take.lua``, ``take_held.lua``). A job that
   a limit or a pause holds leaves as one of its queue, and is admitted anew on the target.
2. A page of that list is in flight under a token (``page.lua``). The target writes it, with a guard that is named by the token, in
   one step (``receive.lua``).
3. The source removes the page that has this token (``page.lua``).

At a crash: the list stays, and so does the page in flight. Whatever goes on, another command or a process of either shard, writes
the same page with the same token, and the target takes it once. Any number of movers may work on one move.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import ResponseError

from framework.admin.held_jobs import HeldJobsKey, held_keys
from framework.admin.statistics import queue_names
from framework.errors import TargetRefusedError
from framework.features.moves import keys as own_keys
from framework.features.moves.belongings import NOTHING, Belongings, read_belongings, tell_merged
from framework.features.moves.class_controls import ClassControls
from framework.features.moves.plan import MovePlan
from framework.features.moves.records import MoveRecord
from framework.features.moves.store import PAGE, RECEIVE, RESTORE, TAKE, TAKE_ASIDE, TAKE_HELD
from framework.fetch.held_blocks import expand_member, unpack_held
from framework.migrate.plan import MigrationReport, MoveDecision, Quota, jid_of
from framework.migrate.queues import QueueMigrator, SetMigrator
from framework.route.route_moves import RouteMoves
from framework.shard.redis_errors import error_code
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import NO_KEY, is_wrong_type, write_when_full
from framework.store.steps import UNPACED, BoundedSteps
from framework.wire import keys
from framework.wire.blocks import is_block
from framework.wire.job import BY_FLAG, DEFERRED, DEFERRED_BY
from framework.wire.json import dumps, loads_object
from framework.wire.sub_queues import is_aside, parent_of

PAGE_JOBS = (20, 500)
"""The fewest and the most jobs of one page."""

PAGE_BYTES = 500_000
"""The most bytes of one page; a larger job is a page of its own."""

_PAGE = 100


def _steps(rate: float | None) -> BoundedSteps:
    """Return the steps in which jobs leave a shard. A given rate is the load that an operator wants: its pages are the largest."""
    return BoundedSteps(*PAGE_JOBS) if rate is None else BoundedSteps(PAGE_JOBS[1], PAGE_JOBS[1], rate=rate)


GUARD_MS = 7 * 86_400_000
"""The lifetime of a guard: longer than a page waits in flight for a shard that is away."""

WRITE_WITHIN_S = 30.0
"""How long a read page may be written. A mover that was suspended writes nothing: its page may be written, and its guard expired."""

_WRITTEN, _WRONG_TYPE, _TOO_LATE = 1, -1, -2
_BY_FLAG = dumps(BY_FLAG)

SETS = (keys.SCHEDULE, keys.RETRY, keys.DEAD, keys.INTERRUPTED)
"""The sorted sets whose jobs move."""


class _RefusedError(Exception):
    """Signal that the target has certainly not written the page with this token."""

    def __init__(self, token: str, reason: str) -> None:
        self.token, self.reason = token, reason
        super().__init__(reason)


def _refusal(token: str, error: ResponseError) -> _RefusedError:
    return _RefusedError(token, "its memory is full (maxmemory)" if error_code(error) == "OOM" else str(error))


class Place(NamedTuple):
    """A queue or a sorted set from which jobs leave."""

    name: str
    """The name of the queue, or the key of the sorted set."""
    is_queue: bool

    @classmethod
    def of(cls, label: str) -> "Place":
        """Return the place with this label."""
        kind, _, name = label.partition(":")
        return cls(name, is_queue=True) if kind == "queue" and name else cls(label, is_queue=False)

    @property
    def label(self) -> str:
        return f"queue:{self.name}" if self.is_queue else self.name

    @property
    def key(self) -> str:
        return keys.queue(self.name) if self.is_queue else self.name

    @property
    def queue(self) -> str:
        """The argument of scripts that says which queue this is; empty for a sorted set."""
        return self.name if self.is_queue else ""


def field_of(move: str, place: Place) -> str:
    """Return the name of a place of a move, in the SET of these places and the HASH of pages in flight."""
    return f"{move} {place.label}"


def places_left(client: "redis.Redis", move: str) -> dict[Place, int]:
    """Return the places whose jobs are leaving a shard by a move, with the number of these jobs. Raises redis errors."""
    members: Any = client.smembers(own_keys.MOVING)
    places: list[Place] = []
    for raw in sorted(members):
        owner, _, label = raw.decode(errors="replace").partition(" ")
        if owner == move and label:
            places.append(Place.of(label))
    pipeline: Any = client.pipeline(transaction=False)
    for place in places:
        pipeline.llen(own_keys.moving(move, place.label))
    return dict(zip(places, pipeline.execute(), strict=True))


def stored_jobs(client: "redis.Redis", text: bytes) -> Iterator[bytes]:
    """Yield the payloads with this text that are leaving the shard, in no place of their own. Raises redis errors."""
    for raw in cast("set[bytes]", client.smembers(own_keys.MOVING)):
        move, _, label = _text(raw).partition(" ")
        place, start = Place.of(label), 0
        # The oldest leave from the right end, so none is passed over.
        while page := cast("list[bytes]", client.lrange(own_keys.moving(move, label), start, start + _PAGE - 1)):
            jobs = page if place.is_queue else [_payload_of(one) for one in page]
            yield from (one for one in jobs if text in one)
            start += len(page)


@dataclass
class MoveProgress:
    """Count the jobs of one run of a mover. ``on_moved`` is called with each page that has moved."""

    report: MigrationReport = field(default_factory=MigrationReport)
    quota: Quota = field(default_factory=Quota)
    """Asked to stop by a signal."""
    on_moved: Callable[[int], None] = lambda _: None
    moved: int = 0

    def count(self, jobs: int) -> None:
        self.moved += jobs
        self.on_moved(jobs)


class Mover:
    """Carry out one move. For one thread."""

    def __init__(
        self,
        record: MoveRecord,
        moves: RouteMoves,
        source: Shard,
        target: Shard,
        progress: MoveProgress,
        rate: float | None = None,
    ) -> None:
        """``rate`` is that of ``BoundedSteps``."""
        self._record = record
        self._source = source.client
        self._deliverer = Deliverer(record, source, target, progress, rate)
        plan = MovePlan(record, moves)
        leaving = _Leaving(record.id, self._source, self._deliverer)
        self._held = _LeavingHeld(leaving, plan, progress, rate)
        self._queues = _LeavingQueues(leaving, plan, progress, rate)
        self._sets = _LeavingSets(leaving, plan, progress, rate)
        self._progress = progress

    def places(self) -> list[Place]:
        """Return the places on the source where jobs of the move may wait. Raises redis errors."""
        names = [name.decode() for name in queue_names(self._source) if _is_text(name)]
        aside = (
            keys.migrated_queue(_text(owner))
            for owner in cast("list[bytes]", self._source.zrange(keys.REGISTRY, 0, -1))
        )
        found = {*names, *(name for name in aside if name is not None)}
        # Those of a list beside a queue leave as jobs of the queue.
        names = sorted(name for name in found if not is_aside(name))
        return [*(Place(name, is_queue=True) for name in names), *(Place(key, is_queue=False) for key in SETS)]

    def preview(self) -> None:
        """Record what would move, and change nothing. Raises redis errors."""
        self._held.preview()
        for place in self.places():
            self._skipping_wrong_type(place, self._queues.preview if place.is_queue else self._sets.preview)

    def run(self) -> int:
        """Move what waits, once through all places; return how many jobs have moved.

        Raises:
            TargetRefusedError: the target takes no job; the jobs are in their places.
            RedisError, OSError: a shard does not answer. The next run, of any mover, goes on.
        """
        before = self._progress.moved
        for place in places_left(self._source, self._record.id):
            self._deliverer.deliver(place)
        # They have been there for longer than the jobs of their queues.
        self._held.migrate()
        for place in self.places():
            if self._progress.quota.stopped:
                break
            self._skipping_wrong_type(place, self._queues.migrate if place.is_queue else self._sets.migrate)
        return self._progress.moved - before

    def _skipping_wrong_type(self, place: Place, step: Callable[[str], None]) -> None:
        """Take the step for a place; note a key of another type, which has no jobs."""
        try:
            step(place.name)
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            self._progress.report.wrong_type_keys.add(place.key)


class Deliverer:
    """Write the jobs that leave the source to the target."""

    def __init__(
        self, record: MoveRecord, source: Shard, target: Shard, progress: MoveProgress, rate: float | None = None
    ) -> None:
        self._move = record.id
        self._controls = ClassControls(record, source, target)
        self._source, self._target = source.client, target.client
        self._target_name = target.name
        self._progress = progress
        # The jobs have waited for their time when they left their place.
        self._steps = _steps(None if rate is None else UNPACED)
        self._clock_offset_s: float | None = None

    def deliver(self, place: Place) -> None:
        """Write all jobs that leave a place. Raises as ``Mover.run``: the jobs are back in their place then."""
        try:
            self._deliver(place)
        except _RefusedError as error:
            restore(self._source, self._move, place, error.token)
            raise TargetRefusedError(self._target_name, error.reason) from error

    def try_to_deliver(self, place: Place) -> bool:
        """Write all jobs that leave a place; return false, and leave them where they are, if the target refuses them."""
        try:
            self._deliver(place)
        except _RefusedError:
            return False
        return True

    def _deliver(self, place: Place) -> None:
        finished, had = "", NOTHING
        while True:
            # Read before the page: a mover that is suspended behind this line is too late.
            until = self._target_now() + WRITE_WITHIN_S
            with self._steps.step() as most:
                page = self._next_page(place, finished, had.removed, most)
            if not page:
                return
            token, jobs = page[0].decode(), page[1:]
            payloads = jobs if place.is_queue else [_payload_of(job) for job in jobs]
            # Time has passed where the class has flags, so the page is read again.
            if self._carry_controls(token, payloads):
                finished, had = "", NOTHING
                continue
            had = read_belongings(self._source, own_keys.moved_page(token), payloads)
            written = self._write(place, token, jobs, had, until)
            if written == _TOO_LATE:
                finished, had = "", NOTHING
                self._clock_offset_s = None
                continue
            self._note_deferred(place, jobs)
            finished = token
            self._progress.count(len(jobs))

    def _carry_controls(self, token: str, payloads: Sequence[bytes]) -> bool:
        try:
            return self._controls.carry(payloads)
        except ResponseError as error:
            raise _refusal(token, error) from error

    def _next_page(self, place: Place, finished: str, removed: bytes, most: int) -> list[bytes]:
        names = [own_keys.MOVING_PAGES, own_keys.moving(self._move, place.label), own_keys.MOVED_COUNTS]
        words = [field_of(self._move, place), uuid.uuid4().hex, most, PAGE_BYTES, finished, self._move, removed]
        return cast("list[bytes]", PAGE(self._source, names, words))

    def _write(self, place: Place, token: str, jobs: Sequence[bytes], had: Belongings, until: float) -> int:
        names = [own_keys.moved_page(token), place.key, keys.QUEUES]
        words: list[Any] = [f"{until:.6f}", GUARD_MS, place.queue, had.found, len(had.values), *had.values, *jobs]
        try:
            reply = cast("int | list[Any]", RECEIVE(self._target, names, words))
        except ResponseError as error:
            # The script has answered, and its first write has failed: nothing is written.
            raise _refusal(token, error) from error
        if isinstance(reply, list):
            tell_merged(had, reply[1::2], [_text(owner) for owner in reply[2::2]])
            return _WRITTEN
        if reply == _WRONG_TYPE:
            raise _RefusedError(token, f"its key {place.key} is of another type")
        return reply

    def _note_deferred(self, place: Place, jobs: Sequence[bytes]) -> None:
        """Name on the target the classes of jobs that a flag defers: they come back there when it lets jobs run (room ``deferral``).

        Behind the jobs: a class that is named without jobs is forgotten. At a crash the page is still in flight, and comes again.
        """
        if place.name != keys.SCHEDULE:
            return
        payloads = [loads_object(_payload_of(job)) for job in jobs if _BY_FLAG in job]
        classes = {
            str(one["class"]) for one in payloads if one.get(DEFERRED) is True and one.get(DEFERRED_BY) == BY_FLAG
        }
        if classes:
            write_when_full(self._target, ("SADD", keys.DEFERRED_CLASSES, *sorted(classes)))

    def _target_now(self) -> float:
        """Return the time of the target's clock, which this host's monotonic clock advances between two reads."""
        if self._clock_offset_s is None:
            asked_at = time.monotonic()
            # An estimate that is too early only shortens the time for the write.
            self._clock_offset_s = server_time(self._target) - max(asked_at, time.monotonic())
        return self._clock_offset_s + time.monotonic()


def restore(client: "redis.Redis", move: str, place: Place, unwritten: str = "") -> int:
    """Put the jobs that are leaving a place back into it; return their number. Raises redis errors.

    A page in flight stays, unless it is the page ``unwritten``: the target may have its jobs.
    """
    names = [own_keys.MOVING_PAGES, own_keys.moving(move, place.label), place.key, keys.QUEUES]
    total = 0
    while True:
        moved = int(cast("int", RESTORE(client, names, [field_of(move, place), PAGE_JOBS[1], place.queue, unwritten])))
        if moved <= 0:
            return total
        total += moved


def put_back(client: "redis.Redis", record: MoveRecord) -> None:
    """Return to their queues, on a shard from which no job moves any more, what movers have set aside there. Raises redis errors."""
    plan = MovePlan(record, RouteMoves())
    for owner in cast("list[bytes]", client.zrange(keys.REGISTRY, 0, -1)):
        queue = keys.migrated_queue(_text(owner))
        if queue is not None:
            QueueMigrator(client, plan, MigrationReport(), Quota(), rate=UNPACED).migrate(queue)


class _Leaving:
    """The list to which jobs of a place go before they leave the source, and the deliverer that empties it."""

    def __init__(self, move: str, client: "redis.Redis", deliverer: Deliverer) -> None:
        self._move = move
        self._deliverer = deliverer
        self._opened: set[Place] = set()
        self.client = client

    def open(self, place: Place) -> str:
        """Return the list for jobs of a place. It is named for other movers before it has jobs."""
        if place not in self._opened:
            write_when_full(self.client, ("SADD", own_keys.MOVING, field_of(self._move, place)))
            self._opened.add(place)
        return own_keys.moving(self._move, place.label)

    def empty(self, place: Place) -> None:
        """Write the jobs to the target. Raises as ``Mover.run``."""
        self._deliverer.deliver(place)

    def try_to_empty(self, place: Place) -> bool:
        """Write the jobs to the target; return false if it refuses them. Raises redis errors."""
        return self._deliverer.try_to_deliver(place)


class _LeavingQueues(QueueMigrator):
    """Take jobs out of the queues of the source in order, and write each page to the target at once."""

    def __init__(self, leaving: _Leaving, plan: MovePlan, progress: MoveProgress, rate: float | None) -> None:
        super().__init__(leaving.client, plan, progress.report, progress.quota, rate=rate)
        self._steps = _steps(rate)
        self._leaving = leaving
        self._place = Place("", is_queue=True)
        self._refused = False

    def migrate(self, queue: str) -> None:
        self._place = Place(queue, is_queue=True)
        self._refused = False
        super().migrate(queue)
        if self._refused:
            # By now all other jobs are back. Those that were to leave are older than they are, and go back in front of them.
            self._quota.stopped = False
            self._leaving.empty(self._place)

    def _targets(self, queues: Sequence[str]) -> list[tuple[str, str]]:
        return [(self._leaving.open(self._place), "") for _ in queues]

    def _is_list(self, queue: str) -> bool:  # noqa: ARG002 - the list of jobs that leave
        return True

    def _page_moved(self, jobs: int) -> None:
        if jobs and not self._leaving.try_to_empty(self._place):
            self._refused = self._quota.stopped = True


class _LeavingSets(SetMigrator):
    """Take jobs out of a sorted set of the source, and write each page to the target at once."""

    def __init__(self, leaving: _Leaving, plan: MovePlan, progress: MoveProgress, rate: float | None) -> None:
        super().__init__(leaving.client, plan, progress.report, progress.quota, rate=rate)
        self._moves = _steps(rate)
        self._leaving = leaving

    def _replace(self, key: str, moving: Sequence[tuple[bytes, MoveDecision]]) -> list[int]:
        if not moving:
            return []
        place = Place(key, is_queue=False)
        names = [key, self._leaving.open(place)]
        with self._moves.step(len(moving)):
            taken = cast("list[int]", TAKE(self._client, names, [member for member, _ in moving]))
        self._leaving.empty(place)
        return taken


class _HeldJob(NamedTuple):
    member: bytes
    """As it is in its set: a ticket, a line feed, and the payload."""
    queue: str
    decision: MoveDecision


class _LeavingHeld:
    """Take jobs that limits, pauses and breakers hold on the source, or that were set aside while memory was short.

    Each leaves as a job of its queue, and is written to the target at once.
    """

    def __init__(self, leaving: _Leaving, plan: MovePlan, progress: MoveProgress, rate: float | None) -> None:
        self._leaving = leaving
        self._client = leaving.client
        self._plan = plan
        self._report, self._quota = progress.report, progress.quota
        self._steps = _steps(rate)

    def preview(self) -> None:
        """Record what would move, and change nothing. Raises redis errors."""
        self._scan_all(dry_run=True)

    def migrate(self) -> None:
        """Move the jobs, those that have been held for longest first. Raises as ``Mover.run``."""
        self._scan_all(dry_run=False)

    def _scan_all(self, *, dry_run: bool) -> None:
        self._skipping_wrong_type(keys.LIMITS_WAITING, partial(self._scan_held, dry_run=dry_run))
        self._skipping_wrong_type(keys.ASIDE, partial(self._scan_lists_aside, dry_run=dry_run))

    def _scan_held(self, *, dry_run: bool) -> None:
        for held in held_keys(self._client):
            self._skipping_wrong_type(_text(held.key), partial(self._scan, held, dry_run=dry_run))

    def _scan_lists_aside(self, *, dry_run: bool) -> None:
        for name in sorted(_text(name) for name in cast("set[bytes]", self._client.smembers(keys.ASIDE))):
            self._skipping_wrong_type(name, partial(self._scan_aside, name, dry_run=dry_run))

    def _skipping_wrong_type(self, place: str, step: Callable[[], None]) -> None:
        self._report.start_place(place)
        try:
            step()
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            self._report.wrong_type_keys.add(place)

    def _scan(self, held: HeldJobsKey, *, dry_run: bool) -> None:
        """Decide about the jobs of a set, the oldest first, and take those that leave."""
        stay = 0
        while not self._quota.stopped:
            found = cast(
                "list[tuple[bytes, float]]",
                self._client.zrange(held.key, stay, stay + PAGE_JOBS[1] - 1, withscores=True),
            )
            if not found:
                return
            jobs = [member for member, _ in takewhile(lambda one: not is_block(one[0]), found)]
            if jobs:
                stay += len(jobs) - self._leave(held, jobs, dry_run=dry_run)
                continue
            block, members = found[0][0], [one.data for one in expand_member(self._client, *found[0])]
            if not dry_run and any(self._decide(one).decision.target for one in members):
                # Its jobs are the next ones.
                unpack_held(self._client, held.key, block)
            else:
                self._leave(held, members, dry_run=True)
                stay += 1

    def _leave(self, held: HeldJobsKey, members: Sequence[bytes], *, dry_run: bool) -> int:
        """Record the decisions about jobs, and take those that leave; return how many have left."""
        jobs = [self._decide(member) for member in members]
        for job in jobs:
            self._record(_text(held.key), job.decision)
        return 0 if dry_run else self._take(held, jobs)

    def _decide(self, member: bytes) -> _HeldJob:
        ticket, _, payload = member.partition(b"\n")
        queue = _queue_of(ticket)
        if queue is None:
            return _HeldJob(member, "", MoveDecision(reason="unreadable", jid=jid_of(payload)))
        return _HeldJob(member, queue, self._plan.decide(payload, parent_of(queue)))

    def _take(self, held: HeldJobsKey, jobs: Sequence[_HeldJob]) -> int:
        """Take the jobs that leave out of their set; return how many have left it."""
        index, owner, scope, turns = keys.PAUSED_CLASSES, held.name, b"", (NO_KEY, NO_KEY)
        if held.kind == "waiting":
            owner, scope = keys.limit(held.name), held.key.removeprefix(keys.limit(held.name).encode() + b":waiting:")
            index, turns = keys.LIMITS_WAITING, (f"{owner}:turns", f"{owner}:full")
        by_queue: dict[str, list[bytes]] = {}
        for job in jobs:
            if job.decision.target:
                by_queue.setdefault(job.queue, []).append(job.member)
        left = 0
        for queue, members in by_queue.items():
            place = Place(queue, is_queue=True)
            names: list[str | bytes] = [held.key, self._leaving.open(place), index, *turns]
            with self._steps.step(len(members)):
                left += sum(cast("list[int]", TAKE_HELD(self._client, names, [owner, scope, *members])))
            self._leaving.empty(place)
        return left

    def _scan_aside(self, name: str, *, dry_run: bool) -> None:
        """Decide about the jobs of a list beside a queue, the oldest first, and take those that leave."""
        key, place = keys.queue(name), Place(parent_of(name), is_queue=True)
        left, scanned = self._client.llen(key), 0
        while left > 0 and not self._quota.stopped:
            # What stays goes to the other end, so each job is seen once.
            start = -scanned - 1 if dry_run else -1
            page = cast("list[bytes]", self._client.lrange(key, start - min(left, PAGE_JOBS[1]) + 1, start))[::-1]
            if not page:
                return
            decisions = [self._plan.decide(data, place.name) for data in page]
            words = [int(bool(one.target)) for one in decisions]
            done = dry_run or self._take_aside(key, name, place, page, words)
            if done:
                left, scanned = left - len(page), scanned + len(page)
                for decision in decisions:
                    self._record(name, decision)

    def _take_aside(self, key: str, name: str, place: Place, page: Sequence[bytes], words: Sequence[int]) -> bool:
        names = [key, self._leaving.open(place), keys.QUEUES, keys.ASIDE]
        with self._steps.step(len(page)):
            done = bool(TAKE_ASIDE(self._client, names, [name, len(page), *page, *words]))
        self._leaving.empty(place)
        return done

    def _record(self, place: str, decision: MoveDecision) -> None:
        if decision.target:
            self._report.add_moved(decision)
        elif decision.reason is not None:
            self._report.add_skipped(place, decision, decision.reason)


def _queue_of(ticket: bytes) -> str | None:
    """Return the queue that the ticket of a held job names, a JSON array; ``None`` if it cannot be read."""
    found: Any = loads_object(b'{"ticket":%b}' % ticket).get("ticket")
    queue = cast("list[Any]", found)[0] if isinstance(found, list) and found else None
    return queue if isinstance(queue, str) and queue else None


def _payload_of(member: bytes) -> bytes:
    """Return the payload of a job that leaves a sorted set: it stands behind its score."""
    return member.partition(b"\n")[2]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
